#!/bin/sh
# The name under which some projects know `meruit reconcile`; all options are passed on.
exec meruit reconcile "$@"
