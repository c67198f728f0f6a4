//! The commands over HTTP, for whoever drives a stand-in in another process. Bodies and answers are JSON, keys are
//! written in hexadecimal digits, errors are `{"error": text}`.
//!
//! | | | |
//! |---|---|---|
//! | `GET` | `/status` | addresses, regions, sizes, safe point |
//! | `GET`, `DELETE` | `/requests` | how many of each kind came; from zero again |
//! | `GET`, `POST`, `DELETE` | `/faults` | those that are set; set one, answers its id; take all away |
//! | `DELETE` | `/faults/{id}` | take one away |
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

use crate::faults::{Fault, FaultError, FaultId, FaultState};
use crate::hex;
use crate::replication::Tail;
use crate::rpc::Rpc;
use crate::stand_in::{CommandError, StandIn};

type Served = State<Arc<StandIn>>;
type Done = Result<Json<Value>, Refused>;

/// The routes, for any HTTP server.
pub fn router(stand_in: Arc<StandIn>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/requests", get(requests).delete(reset_requests))
        .route("/faults", get(faults).post(add_fault).delete(clear_faults))
        .route("/faults/{id}", delete(remove_fault))
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
        .with_state(stand_in)
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

impl<T: DeserializeOwned> FromRequest<Arc<StandIn>> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &Arc<StandIn>) -> Result<Self, Refused> {
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

async fn status(State(stand_in): Served) -> Json<Value> {
    let regions = stand_in.regions().into_iter().map(|region| RegionStatus {
        id: region.id,
        start: hex::encode(&region.start),
        end: hex::encode(&region.end),
        version: region.version,
        conf_version: region.conf_version,
        leader: region.leader,
    });
    Json(json!({
        "cluster_id": stand_in.cluster_id(),
        "pd": stand_in.pd(),
        "stores": stand_in.stores(),
        "regions": regions.collect::<Vec<_>>(),
        "sizes": stand_in.sizes(),
        "safe_point": stand_in.safe_point(),
        "held": stand_in.faults().held(),
    }))
}

async fn requests(State(stand_in): Served) -> Json<BTreeMap<Rpc, u64>> {
    Json(stand_in.requests())
}

async fn reset_requests(State(stand_in): Served) -> Done {
    stand_in.reset_requests();
    done()
}

async fn faults(State(stand_in): Served) -> Json<Vec<FaultState>> {
    Json(stand_in.faults().list())
}

async fn add_fault(State(stand_in): Served, Body(fault): Body<Fault>) -> Done {
    let id = stand_in.faults().add(fault)?;
    Ok(Json(json!({ "id": id })))
}

async fn clear_faults(State(stand_in): Served) -> Done {
    stand_in.faults().clear();
    done()
}

async fn remove_fault(State(stand_in): Served, Path(id): Path<u64>) -> Result<Json<FaultState>, Refused> {
    let removed = stand_in.faults().remove(FaultId(id));
    removed
        .map(Json)
        .ok_or_else(|| Refused(StatusCode::NOT_FOUND, format!("there is no fault {id}")))
}

async fn deliver(State(stand_in): Served) -> Done {
    Ok(Json(json!({ "delivered": stand_in.faults().deliver().await })))
}

async fn split(State(stand_in): Served, Body(Key { key }): Body<Key>) -> Done {
    stand_in.split(&key).await?;
    done()
}

async fn merge(State(stand_in): Served, Body(Key { key }): Body<Key>) -> Done {
    stand_in.merge(&key).await?;
    done()
}

async fn move_region(State(stand_in): Served, Body(Move { key, store }): Body<Move>) -> Done {
    stand_in.move_region(&key, store).await?;
    done()
}

async fn silence(State(stand_in): Served, Body(Silence { key, silent }): Body<Silence>) -> Done {
    stand_in.silence(&key, silent);
    done()
}

async fn elect(State(stand_in): Served) -> Done {
    stand_in.elect().await?;
    done()
}

async fn pause(State(stand_in): Served, Body(Process { process }): Body<Process>) -> Done {
    stand_in.pause(process)?;
    done()
}

async fn resume(State(stand_in): Served, Body(Process { process }): Body<Process>) -> Done {
    stand_in.resume(process)?;
    done()
}

async fn kill(State(stand_in): Served, Body(Process { process }): Body<Process>) -> Done {
    stand_in.kill(process).await?;
    done()
}

async fn revive(State(stand_in): Served, Body(Process { process }): Body<Process>) -> Done {
    stand_in.revive(process).await?;
    done()
}

async fn sync(State(stand_in): Served, Body(Sync { hold }): Body<Sync>) -> Done {
    stand_in.hold_sync(hold).await?;
    done()
}

async fn restart(State(stand_in): Served, Body(Restart { tail }): Body<Restart>) -> Done {
    stand_in.restart(tail).await?;
    done()
}
