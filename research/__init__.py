"""What was found out once: the papers' figures, tuning, model comparisons. Nothing imports it but its tests.

A study is a module with ``run(quick)``, which returns figures that JSON can hold, and ``plot(figures, folder)`` if it
draws. ``python -m research NAME`` runs one (``papers.htf``, say); the pages beside the modules say what came out.
"""
