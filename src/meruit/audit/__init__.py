"""Bundles that let a third party check an outcome and its payment: written, signed, read."""
