"""The operator's console below /admin: for owners, in pages that the server writes."""
