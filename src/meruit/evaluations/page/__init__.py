"""One evaluation, or two compared, as one HTML file that needs no network.

Read in this order:

- render.py - the page: summary or comparison, then the list of cases
- cases.py - the cases as rows for the list, and their work in compressed parts that a reader's browser opens one by one
- plot.py - the differences of a comparison as a plot
- templates/, static/cases.js, static/cases.css - the frame, the list with its filters, and how they look
"""
