//! Empty: the tests are what counts.
