//! The custom resources of KubeBrain: types, defaults and validation.
