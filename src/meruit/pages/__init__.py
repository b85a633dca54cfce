"""What every HTML page shares: one look, one set of components, one way to make HTML.

Read in this order:

- templating.py - the Jinja2 environment: everything that is not markup is escaped and without control characters
- static/meruit.css - tokens (colours, spacing, type) and components, light and dark, for phones and paper
- templates/document.html - the frame of a page; templates/components.html - marks, rates and notes
- drawing.py, templates/chart.html - charts as SVG; scale.py - from values to positions
- number_format.py - numbers with significant digits, and a dash for an unknown value

A package with pages has a folder `templates` of its own, and finds the shared ones under `pages/`.
"""
