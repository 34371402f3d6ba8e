"""How Sphinx builds these pages: ``make docs`` at the top of the repository."""

import mxloop

project = "mxloop"
author = "the mxloop authors"
copyright = f"2026, {author}"
release = version = mxloop.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "Training loops for Apache MXNet 1.9", "fixed_sidebar": True}
html_show_sourcelink = False

default_role = "code"  # as NumPy-style docstrings use single backticks
autodoc_default_options = {"show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say the types in words
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # a property and its line under Attributes are one thing
