"""Templates of the cards that go with what is published."""
