//! Checks of the repository as a whole.

mod architecture;
