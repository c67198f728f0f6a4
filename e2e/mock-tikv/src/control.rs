//! The commands over HTTP, for a mock in another process. Bodies and answers are JSON, keys are
//! written in hexadecimal digits, errors are `{"error": text}`.
//!
//! | | | |
//! |---|---|---|
//! | `GET` | `/status` | addresses, regions, sizes, safe point |
//! | `GET`, `DELETE` | `/requests` | how many of each kind came; from zero again |
//! | `GET`, `POST`, `DELETE` | `/faults` | those that are set; set one, answers its id; take all away |
//! | `DELETE` | `/faults/{id}` | take one away |
//! | `GET`, `POST` | `/delays` | how late answers are; `[{"process", "ms", "jitter_ms", "stall_every_ms", "stall_ms"}]` |
//! | `POST` | `/pd-leader` | `{"member"}`: which member of PD leads, from 0 |
//! | `POST` | `/deliver` | deliver the messages that are held back, answers how many |
//! | `POST` | `/split`, `/merge` | `{"key"}` |
//! | `POST` | `/move` | `{"key", "store"}` |
//! | `POST` | `/silence` | `{"key", "silent"}`: whether the region of the key answers nothing |
//! | `POST` | `/elect` | regions of stores that are killed or paused are led by others |
//! | `POST` | `/pause`, `/resume`, `/kill`, `/revive` | `{"process"}`: 0 is PD, stores count from 1 |
//! | `POST` | `/sync` | `{"hold"}`: whether writes are answered before they are synced |
//! | `POST` | `/restart` | `{"tail": "keep"}` or `{"tail": "drop"}` |

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::delays::Delay;
use crate::faults::{Fault, FaultError, FaultId, FaultState};
use crate::hex;
use crate::mock_tikv::{CommandError, MockTikv};
use crate::replication::Tail;
use crate::rpc::Rpc;

type Served = State<Arc<MockTikv>>;
type Done = Result<Json<Value>, Refused>;

/// The routes, for any HTTP server.
pub fn router(mock_tikv: Arc<MockTikv>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/requests", get(requests).delete(reset_requests))
        .route("/faults", get(faults).post(add_fault).delete(clear_faults))
        .route("/faults/{id}", delete(remove_fault))
        .route("/delays", get(delays).post(set_delays))
        .route("/pd-leader", post(lead_pd))
        .route("/deliver", post(deliver))
        .route("/split", post(split))
        .route("/merge", post(merge))
        .route("/move", post(move_region))
        .route("/silence", post(silence))
        .route("/elect", post(elect))
        .route("/pause", post(pause))
        .route("/resume", post(resume))
        .route("/kill", post(kill))
        .route("/revive", post(revive))
        .route("/sync", post(sync))
        .route("/restart", post(restart))
        .with_state(mock_tikv)
}

/// A command that was not done, and why.
struct Refused(StatusCode, String);

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Self {
        let code = match error {
            CommandError::Regions(_) => StatusCode::CONFLICT,
            CommandError::NoProcess(_) => StatusCode::NOT_FOUND,
            CommandError::Endpoint(_) | CommandError::Refused(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        Self(
            code,
            causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")),
        )
    }
}

impl From<FaultError> for Refused {
    fn from(error: FaultError) -> Self {
        Self(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<JsonRejection> for Refused {
    fn from(error: JsonRejection) -> Self {
        Self(error.status(), error.body_text())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// A body, refused in the form of all other errors.
struct Body<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<MockTikv>> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &Arc<MockTikv>) -> Result<Self, Refused> {
        let Json(body) = Json::from_request(request, state).await?;
        Ok(Self(body))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    #[serde(with = "hex::serde")]
    key: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    #[serde(with = "hex::serde")]
    key: Vec<u8>,
    store: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Silence {
    #[serde(with = "hex::serde")]
    key: Vec<u8>,
    silent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Process {
    process: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PdLeader {
    member: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sync {
    hold: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Restart {
    tail: Tail,
}

#[derive(Serialize)]
struct RegionStatus {
    id: u64,
    start: String,
    end: String,
    version: u64,
    conf_version: u64,
    leader: u64,
}

fn done() -> Done {
    Ok(Json(json!({})))
}

async fn status(State(mock_tikv): Served) -> Json<Value> {
    let regions = mock_tikv.regions().into_iter().map(|region| RegionStatus {
        id: region.id,
        start: hex::encode(&region.start),
        end: hex::encode(&region.end),
        version: region.version,
        conf_version: region.conf_version,
        leader: region.leader,
    });
    Json(json!({
        "cluster_id": mock_tikv.cluster_id(),
        "pd": mock_tikv.pd(),
        "stores": mock_tikv.stores(),
        "regions": regions.collect::<Vec<_>>(),
        "sizes": mock_tikv.sizes(),
        "safe_point": mock_tikv.safe_point(),
        "held": mock_tikv.faults().held(),
    }))
}

async fn requests(State(mock_tikv): Served) -> Json<BTreeMap<Rpc, u64>> {
    Json(mock_tikv.requests())
}

async fn reset_requests(State(mock_tikv): Served) -> Done {
    mock_tikv.reset_requests();
    done()
}

async fn faults(State(mock_tikv): Served) -> Json<Vec<FaultState>> {
    Json(mock_tikv.faults().list())
}

async fn add_fault(State(mock_tikv): Served, Body(fault): Body<Fault>) -> Done {
    let id = mock_tikv.faults().add(fault)?;
    Ok(Json(json!({ "id": id })))
}

async fn clear_faults(State(mock_tikv): Served) -> Done {
    mock_tikv.faults().clear();
    done()
}

async fn remove_fault(State(mock_tikv): Served, Path(id): Path<u64>) -> Result<Json<FaultState>, Refused> {
    let removed = mock_tikv.faults().remove(FaultId(id));
    removed
        .map(Json)
        .ok_or_else(|| Refused(StatusCode::NOT_FOUND, format!("there is no fault {id}")))
}

async fn delays(State(mock_tikv): Served) -> Json<Vec<Delay>> {
    Json(mock_tikv.delays().list())
}

async fn set_delays(State(mock_tikv): Served, Body(delays): Body<Vec<Delay>>) -> Done {
    mock_tikv.delays().set(delays);
    done()
}

async fn lead_pd(State(mock_tikv): Served, Body(PdLeader { member }): Body<PdLeader>) -> Done {
    if member >= mock_tikv.pd_members().len() {
        return Err(Refused(StatusCode::NOT_FOUND, format!("PD has no member {member}")));
    }
    mock_tikv.lead_pd(member);
    done()
}

async fn deliver(State(mock_tikv): Served) -> Done {
    Ok(Json(json!({ "delivered": mock_tikv.faults().deliver().await })))
}

async fn split(State(mock_tikv): Served, Body(Key { key }): Body<Key>) -> Done {
    mock_tikv.split(&key).await?;
    done()
}

async fn merge(State(mock_tikv): Served, Body(Key { key }): Body<Key>) -> Done {
    mock_tikv.merge(&key).await?;
    done()
}

async fn move_region(State(mock_tikv): Served, Body(Move { key, store }): Body<Move>) -> Done {
    mock_tikv.move_region(&key, store).await?;
    done()
}

async fn silence(State(mock_tikv): Served, Body(Silence { key, silent }): Body<Silence>) -> Done {
    mock_tikv.silence(&key, silent);
    done()
}

async fn elect(State(mock_tikv): Served) -> Done {
    mock_tikv.elect().await?;
    done()
}

async fn pause(State(mock_tikv): Served, Body(Process { process }): Body<Process>) -> Done {
    mock_tikv.pause(process)?;
    done()
}

async fn resume(State(mock_tikv): Served, Body(Process { process }): Body<Process>) -> Done {
    mock_tikv.resume(process)?;
    done()
}

async fn kill(State(mock_tikv): Served, Body(Process { process }): Body<Process>) -> Done {
    mock_tikv.kill(process).await?;
    done()
}

async fn revive(State(mock_tikv): Served, Body(Process { process }): Body<Process>) -> Done {
    mock_tikv.revive(process).await?;
    done()
}

async fn sync(State(mock_tikv): Served, Body(Sync { hold }): Body<Sync>) -> Done {
    mock_tikv.hold_sync(hold).await?;
    done()
}

async fn restart(State(mock_tikv): Served, Body(Restart { tail }): Body<Restart>) -> Done {
    mock_tikv.restart(tail).await?;
    done()
}
