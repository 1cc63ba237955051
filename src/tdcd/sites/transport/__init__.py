"""How messages travel: over gRPC, or in memory."""
