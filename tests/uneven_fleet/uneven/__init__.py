"""An app of nodes that are slowed."""
