"""The live page: `epidemic serve` shows directories as they are now, to whoever has the address. It only reads."""
