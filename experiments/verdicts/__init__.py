"""How often the audit's verdict and its gate are right."""
