"""What mkdocs does to pages besides what its plugins do."""

import re


def on_page_content(html: str, **_: object) -> str:
    """Leave the roles of Sphinx out that docstrings have before a name: ``:meth:`open```."""
    return re.sub(r":(?:meth|class|func|attr|mod):(<code>)~?", r"\1", html)
