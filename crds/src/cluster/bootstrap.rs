//! The first data of a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Source of a cluster's first data. Reserved: it has no fields yet, and a cluster begins empty.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bootstrap {}
