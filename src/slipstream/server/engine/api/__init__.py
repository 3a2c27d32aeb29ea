"""The JetStream API ($JS.API): dispatch, requests, responses, advisories."""
