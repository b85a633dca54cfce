"""Tables and SQL of evaluations, their segments and cases."""
