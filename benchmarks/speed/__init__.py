"""How fast: of the veil, the gateway, the ledgers, the audit and the integrations."""
