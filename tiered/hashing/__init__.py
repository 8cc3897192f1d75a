"""Identity of a block: what must agree before bytes are shared, and the hash chain over tokens."""
