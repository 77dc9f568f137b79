"""The site of the documents: `make pages`, or `python -m deploy.pages FOLDER`.

The documents lie where a reader of the repository looks for them, and link to each other by relative paths.
`source.py` copies them into one tree with the same paths, so that the same links hold on the site, and MkDocs builds
the site from that tree (`mkdocs.yaml`). A warning of MkDocs is an error.
"""
