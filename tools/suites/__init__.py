"""Peers' own test suites, fetched, adapted in build/ and run on Tilewise: `./tw peers-suites`."""
