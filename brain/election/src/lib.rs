//! Leader election: client-go's algorithm over any lock that compares and sets.
