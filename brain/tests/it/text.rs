//! Scripts as text.
