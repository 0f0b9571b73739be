"""A trainer that fetches and trains in one method."""
