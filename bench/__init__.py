"""Benchmarks: every one that ``python -m bench`` names is a module with ``run(quick)``.

``run`` returns figures that JSON can hold. Each module has two ``Sizes``: ``FULL``, whose figures the documents quote,
and ``QUICK``, which takes seconds. If recordings are needed and missing, the figures say so under ``skipped``.
"""
