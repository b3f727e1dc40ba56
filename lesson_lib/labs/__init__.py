"""The laboratory: what one lesson needs and nobody takes along. The library never imports it."""
