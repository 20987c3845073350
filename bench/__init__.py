"""Benchmarks: every one that ``hexveil bench`` names is a module with ``run(quick)``, and ``plot(figures, folder)`` if it draws.

``run`` returns figures that JSON can hold. A module has its ``Sizes`` twice: ``FULL``, which the documents quote, and ``QUICK``, a look in
seconds. Where recordings are needed and absent the figures say so under ``skipped``.
"""
