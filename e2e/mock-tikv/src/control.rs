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

type MockState = State<Arc<MockTikv>>;
type CommandResult = Result<Json<Value>, CommandRefused>;

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
struct CommandRefused(StatusCode, String);

impl From<CommandError> for CommandRefused {
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

impl From<FaultError> for CommandRefused {
    fn from(error: FaultError) -> Self {
        Self(StatusCode::BAD_REQUEST, error.to_string())
    }
}

impl From<JsonRejection> for CommandRefused {
    fn from(error: JsonRejection) -> Self {
        Self(error.status(), error.body_text())
    }
}

impl IntoResponse for CommandRefused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "error": self.1 }))).into_response()
    }
}

/// A body, refused in the form of all other errors.
struct JsonBody<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<MockTikv>> for JsonBody<T> {
    type Rejection = CommandRefused;

    async fn from_request(request: Request, state: &Arc<MockTikv>) -> Result<Self, CommandRefused> {
        let Json(body) = Json::from_request(request, state).await?;
        Ok(Self(body))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyParams {
    #[serde(with = "hex::serde")]
    key: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveParams {
    #[serde(with = "hex::serde")]
    key: Vec<u8>,
    store: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SilenceParams {
    #[serde(with = "hex::serde")]
    key: Vec<u8>,
    silent: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessParams {
    process: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PdLeader {
    member: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SyncParams {
    hold: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RestartParams {
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

fn done() -> CommandResult {
    Ok(Json(json!({})))
}

async fn status(State(mock_tikv): MockState) -> Json<Value> {
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

async fn requests(State(mock_tikv): MockState) -> Json<BTreeMap<Rpc, u64>> {
    Json(mock_tikv.requests())
}

async fn reset_requests(State(mock_tikv): MockState) -> CommandResult {
    mock_tikv.reset_requests();
    done()
}

async fn faults(State(mock_tikv): MockState) -> Json<Vec<FaultState>> {
    Json(mock_tikv.faults().list())
}

async fn add_fault(State(mock_tikv): MockState, JsonBody(fault): JsonBody<Fault>) -> CommandResult {
    let id = mock_tikv.faults().add(fault)?;
    Ok(Json(json!({ "id": id })))
}

async fn clear_faults(State(mock_tikv): MockState) -> CommandResult {
    mock_tikv.faults().clear();
    done()
}

async fn remove_fault(State(mock_tikv): MockState, Path(id): Path<u64>) -> Result<Json<FaultState>, CommandRefused> {
    let removed = mock_tikv.faults().remove(FaultId(id));
    removed
        .map(Json)
        .ok_or_else(|| CommandRefused(StatusCode::NOT_FOUND, format!("there is no fault {id}")))
}

async fn delays(State(mock_tikv): MockState) -> Json<Vec<Delay>> {
    Json(mock_tikv.delays().list())
}

async fn set_delays(State(mock_tikv): MockState, JsonBody(delays): JsonBody<Vec<Delay>>) -> CommandResult {
    mock_tikv.delays().set(delays);
    done()
}

async fn lead_pd(State(mock_tikv): MockState, JsonBody(PdLeader { member }): JsonBody<PdLeader>) -> CommandResult {
    if member >= mock_tikv.pd_members().len() {
        return Err(CommandRefused(
            StatusCode::NOT_FOUND,
            format!("PD has no member {member}"),
        ));
    }
    mock_tikv.lead_pd(member);
    done()
}

async fn deliver(State(mock_tikv): MockState) -> CommandResult {
    Ok(Json(json!({ "delivered": mock_tikv.faults().deliver().await })))
}

async fn split(State(mock_tikv): MockState, JsonBody(KeyParams { key }): JsonBody<KeyParams>) -> CommandResult {
    mock_tikv.split(&key).await?;
    done()
}

async fn merge(State(mock_tikv): MockState, JsonBody(KeyParams { key }): JsonBody<KeyParams>) -> CommandResult {
    mock_tikv.merge(&key).await?;
    done()
}

async fn move_region(
    State(mock_tikv): MockState,
    JsonBody(MoveParams { key, store }): JsonBody<MoveParams>,
) -> CommandResult {
    mock_tikv.move_region(&key, store).await?;
    done()
}

async fn silence(
    State(mock_tikv): MockState,
    JsonBody(SilenceParams { key, silent }): JsonBody<SilenceParams>,
) -> CommandResult {
    mock_tikv.silence(&key, silent);
    done()
}

async fn elect(State(mock_tikv): MockState) -> CommandResult {
    mock_tikv.elect().await?;
    done()
}

async fn pause(
    State(mock_tikv): MockState,
    JsonBody(ProcessParams { process }): JsonBody<ProcessParams>,
) -> CommandResult {
    mock_tikv.pause(process)?;
    done()
}

async fn resume(
    State(mock_tikv): MockState,
    JsonBody(ProcessParams { process }): JsonBody<ProcessParams>,
) -> CommandResult {
    mock_tikv.resume(process)?;
    done()
}

async fn kill(
    State(mock_tikv): MockState,
    JsonBody(ProcessParams { process }): JsonBody<ProcessParams>,
) -> CommandResult {
    mock_tikv.kill(process).await?;
    done()
}

async fn revive(
    State(mock_tikv): MockState,
    JsonBody(ProcessParams { process }): JsonBody<ProcessParams>,
) -> CommandResult {
    mock_tikv.revive(process).await?;
    done()
}

async fn sync(State(mock_tikv): MockState, JsonBody(SyncParams { hold }): JsonBody<SyncParams>) -> CommandResult {
    mock_tikv.hold_sync(hold).await?;
    done()
}

async fn restart(
    State(mock_tikv): MockState,
    JsonBody(RestartParams { tail }): JsonBody<RestartParams>,
) -> CommandResult {
    mock_tikv.restart(tail).await?;
    done()
}
