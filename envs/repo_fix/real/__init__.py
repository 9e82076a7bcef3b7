"""Real fixes of small packages, from two consecutive releases of each on the package index.

One YAML file a fix holds what it is and our own tests of it (`fixes.py`); the sources are
downloaded when tasks are built, pinned by hash, and are no part of this project (`build.py`).
"""
