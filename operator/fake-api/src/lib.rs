//! For tests of the operator and of its plugin: an API server in memory, with resource versions, preconditions, label selectors and watches.
//!
//! It applies naively: maps are merged and lists are replaced. Managers own only entries of `data` and finalizers. An apply removes entries
//! that it omits, unless another manager owns them, or the same manager owns them by a create. A script may answer instead of the server,
//! admission may change what is written, and watches may be delayed, as by a slow API server.
//!
//! It must never depend on the operator: what it needs of a cluster is in `plan`.

#![allow(clippy::unwrap_used, reason = "a test fails where a helper fails")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use plan::testing::FakeCluster;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tower::{BoxError, Service, service_fn};

mod owners;
mod strategic;

use owners::FieldOwners;

/// Path of the clusters.
pub const CLUSTERS: &str = "/apis/kubebrain.io/v1alpha1/namespaces/brains/kubebrainclusters";

/// One request.
#[derive(Clone)]
pub struct RecordedRequest {
    /// The operator that sent it, if there are several.
    pub by: &'static str,
    pub method: Method,
    pub path: String,
    pub query: String,
    pub body: Value,
    /// True if only the metadata of objects is requested.
    pub bare: bool,
}

impl std::fmt::Debug for RecordedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}?{}", self.by, self.method, self.path, self.query)
    }
}

impl RecordedRequest {
    pub fn writes(&self) -> bool {
        self.method != Method::GET
    }

    fn manager(&self) -> String {
        self.parameter("fieldManager").unwrap_or_default()
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.into_iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.replace("%2F", "/").replace("%3D", "=").replace("%2C", ","))
    }
}

/// The reply of a script to a request.
pub enum ScriptedReply {
    /// Passes the request to the server.
    Pass,
    /// Answers with code and body.
    With(u16, Value),
    /// Answers with a text, as for logs.
    Text(String),
    /// Never answers.
    Never,
    /// Passes the request to the server after a notification.
    After(Arc<Notify>),
}

type ReplyScript = dyn Fn(&RecordedRequest) -> ScriptedReply + Send + Sync;
/// Changes an object that is about to be stored at a path.
type AdmissionHook = dyn Fn(&str, &mut Value) + Send + Sync;
/// Body of an answer.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

#[derive(Default)]
struct FakeState {
    /// Objects by path.
    objects: BTreeMap<String, Value>,
    /// Owners of entries, by path.
    owners: BTreeMap<String, FieldOwners>,
    version: u64,
    events: Vec<FakeWatchEvent>,
    held: bool,
    asked: Vec<RecordedRequest>,
}

#[derive(Clone)]
struct FakeWatchEvent {
    path: String,
    before: Option<Value>,
    after: Option<Value>,
    version: u64,
}

/// The server. Clones share their state.
#[derive(Clone)]
pub struct FakeApi {
    state: Arc<Mutex<FakeState>>,
    changed: Arc<Notify>,
    script: Arc<ReplyScript>,
    admission: Arc<AdmissionHook>,
    by: &'static str,
    /// Lists must be requested in pages.
    is_paged: bool,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeApi {
    pub fn new() -> Self {
        Self::scripted(|_| ScriptedReply::Pass)
    }

    pub fn scripted(script: impl Fn(&RecordedRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            script: Arc::new(script),
            admission: Arc::new(|_, _| {}),
            by: "",
            is_paged: false,
        }
    }

    /// Returns the same server with another script.
    pub fn answering(self, script: impl Fn(&RecordedRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self {
            script: Arc::new(script),
            ..self
        }
    }

    /// Returns the same server with admission that changes what clients write.
    pub fn admitting(self, admission: impl Fn(&str, &mut Value) + Send + Sync + 'static) -> Self {
        Self {
            admission: Arc::new(admission),
            ..self
        }
    }

    /// Returns the same server for requests of the operator `by`.
    pub fn seen_by(
        &self,
        by: &'static str,
        script: impl Fn(&RecordedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Arc::new(script),
            by,
            ..self.clone()
        }
    }

    /// Returns the same server, but it rejects lists without pages for kinds whose objects users may create in any number and size.
    pub fn paged(&self) -> Self {
        Self {
            is_paged: true,
            ..self.clone()
        }
    }

    /// Loads the cluster of a fake world and all its objects, without pods.
    pub fn load(&self, fake: &FakeCluster) {
        let namespace = fake.cluster.metadata.namespace.as_deref().unwrap();
        let cluster = format!("{CLUSTERS}/dev").replace("brains", namespace);
        self.put(&cluster, serde_json::to_value(&fake.cluster).unwrap());
        for (key, object) in &fake.seen.objects {
            let resource = key.kind.resource();
            let prefix = if resource.group.is_empty() { "api" } else { "apis" };
            let path = format!(
                "/{prefix}/{}/namespaces/{namespace}/{}/{}",
                resource.api_version, resource.plural, key.name
            );
            let mut value = serde_json::to_value(object).unwrap();
            value["kind"] = json!(resource.kind);
            value["apiVersion"] = json!(resource.api_version);
            self.put(&path, value);
        }
        for claim in &fake.seen.claims {
            let mut value = serde_json::to_value(claim).unwrap();
            value["metadata"]["namespace"] = json!(namespace);
            let name = claim.metadata.name.clone().unwrap();
            self.put(
                &format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"),
                value,
            );
        }
    }

    /// Puts an object at `path`, as a foreign writer would.
    pub fn put(&self, path: &str, object: Value) -> Value {
        self.lock().store(path, Some(object), &self.changed).unwrap()
    }

    pub fn remove(&self, path: &str) {
        self.lock().store(path, None, &self.changed);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.lock().objects.get(path).cloned()
    }

    /// Pauses or resumes the watches.
    pub fn hold(&self, held: bool) {
        self.lock().held = held;
        self.changed.notify_waiters();
    }

    /// Returns the requests so far, without Events.
    pub fn asked(&self) -> Vec<RecordedRequest> {
        let asked = self.lock().asked.clone();
        asked
            .into_iter()
            .filter(|asked| !asked.path.contains("/events"))
            .collect()
    }

    /// Returns the reasons of the Events so far.
    pub fn events(&self) -> Vec<String> {
        let events = self.lock().asked.clone();
        let events = events
            .iter()
            .filter(|asked| asked.path.contains("/events") && asked.writes());
        events
            .map(|asked| asked.body["reason"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    /// Returns the notes of the Events about an object of this kind.
    pub fn events_about(&self, kind: &str) -> Vec<String> {
        let asked = self.lock().asked.clone();
        let events = asked
            .iter()
            .filter(|asked| asked.path.contains("/events") && asked.writes());
        events
            .filter(|asked| asked.body["regarding"]["kind"] == kind)
            .map(|asked| asked.body["note"].as_str().unwrap_or_default().to_owned())
            .collect()
    }

    pub fn writes(&self) -> Vec<RecordedRequest> {
        self.asked().into_iter().filter(RecordedRequest::writes).collect()
    }

    pub fn forget_requests(&self) {
        self.lock().asked.clear();
    }

    fn lock(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap()
    }

    /// Returns a client without the layers of an operator.
    pub fn client(&self) -> Client {
        ClientBuilder::new(self.service(), "default").build()
    }

    /// Returns the server as the service below a client.
    pub fn service(
        &self,
    ) -> impl Service<Request<Body>, Response = Response<AnswerBody>, Error = BoxError, Future: Send + 'static>
    + Clone
    + Send
    + 'static {
        let server = self.clone();
        service_fn(move |request| {
            let server = server.clone();
            async move { server.answer(request).await }
        })
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<AnswerBody>, BoxError> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await?;
        let asked = RecordedRequest {
            by: self.by,
            method: parts.method,
            path: parts.uri.path().to_owned(),
            query: parts.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or_default(),
            bare: parts
                .headers
                .get(http::header::ACCEPT)
                .is_some_and(|accept| accept.to_str().unwrap().contains("as=PartialObjectMetadata")),
        };
        let is_large = ["/pods", "/persistentvolumeclaims", "/events"]
            .iter()
            .any(|plural| asked.path.ends_with(plural));
        let is_whole = asked.parameter("limit").is_none() && asked.parameter("watch").is_none();
        assert!(
            !(self.is_paged && is_large && is_whole && asked.method == Method::GET),
            "a list without pages: {asked:?}"
        );
        self.lock().asked.push(asked.clone());
        match (self.script)(&asked) {
            ScriptedReply::Pass => {}
            ScriptedReply::With(code, value) => return reply(code, &value),
            ScriptedReply::Text(text) => return text_reply(200, text),
            ScriptedReply::Never => return std::future::pending().await,
            ScriptedReply::After(released) => released.notified().await,
        }
        if asked.parameter("watch").as_deref() == Some("true") {
            return Ok(Response::new(self.watch(asked)));
        }
        let (code, mut value) = self.lock().serve(&asked, &*self.admission, &self.changed);
        if asked.bare {
            for item in value["items"].as_array_mut().into_iter().flatten() {
                strip(item);
            }
        }
        reply(code, &value)
    }

    fn watch(&self, asked: RecordedRequest) -> AnswerBody {
        let from: u64 = asked
            .parameter("resourceVersion")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let at = self
            .lock()
            .events
            .iter()
            .take_while(|event| event.version <= from)
            .count();
        let (server, collection) = (self.clone(), ListedCollection::of(&asked));
        let events = futures::stream::unfold(at, move |mut at| {
            let (server, collection, asked) = (server.clone(), collection.clone(), asked.clone());
            async move {
                loop {
                    let changed = server.changed.notified();
                    let mut changed = std::pin::pin!(changed);
                    changed.as_mut().enable();
                    let next = {
                        let state = server.lock();
                        (!state.held).then(|| state.events.get(at).cloned()).flatten()
                    };
                    let Some(event) = next else {
                        changed.await;
                        continue;
                    };
                    at += 1;
                    if let Some(mut line) = collection.line(&event) {
                        if asked.bare {
                            strip(&mut line["object"]);
                        }
                        let frame = Frame::data(Bytes::from(format!("{line}\n")));
                        return Some((Ok::<_, BoxError>(frame), at));
                    }
                }
            }
        });
        StreamBody::new(events).boxed_unsync()
    }
}

/// Removes everything but the metadata.
fn strip(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|field, _| field == "metadata");
    }
}

fn reply(code: u16, value: &Value) -> Result<Response<AnswerBody>, BoxError> {
    text_reply(code, value.to_string())
}

fn text_reply(code: u16, text: String) -> Result<Response<AnswerBody>, BoxError> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    Ok(Response::builder().status(code).body(body.boxed_unsync())?)
}

/// Returns an answer that refuses the request.
pub fn failure(code: u16, reason: &str, name: &str) -> (u16, Value) {
    let message = format!("{reason}, said the server");
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code, "details": {"name": name},
    });
    (code, status)
}

/// The objects that a list or a watch covers.
#[derive(Clone)]
struct ListedCollection {
    /// The path before `namespaces`, such as `/apis/apps/v1`.
    base: String,
    namespace: Option<String>,
    plural: String,
    labels: Vec<(String, Option<String>)>,
    /// Values of fields, by their dotted paths.
    fields: Vec<(String, String)>,
}

impl ListedCollection {
    fn of(asked: &RecordedRequest) -> Self {
        let (base, namespace, plural) = match asked.path.split_once("/namespaces/") {
            Some((base, rest)) => {
                let (namespace, plural) = rest.split_once('/').unwrap();
                (base.to_owned(), Some(namespace.to_owned()), plural.to_owned())
            }
            None => {
                let (base, plural) = asked.path.rsplit_once('/').unwrap();
                (base.to_owned(), None, plural.to_owned())
            }
        };
        let selector = asked.parameter("labelSelector").unwrap_or_default();
        let parts = selector.split(',').filter(|part| !part.is_empty());
        let labels = parts.map(|part| match part.split_once('=') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (part.to_owned(), None),
        });
        let fields = asked.parameter("fieldSelector").unwrap_or_default();
        let fields = fields.split(',').filter_map(|part| part.split_once('='));
        Self {
            base,
            namespace,
            plural,
            labels: labels.collect(),
            fields: fields
                .map(|(path, value)| (path.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    fn holds(&self, path: &str, object: &Value) -> bool {
        let Some(rest) = path
            .strip_prefix(&self.base)
            .and_then(|rest| rest.strip_prefix("/namespaces/"))
        else {
            return false;
        };
        let mut parts = rest.split('/');
        let (namespace, plural) = (parts.next().unwrap(), parts.next().unwrap());
        let labelled = |(key, value): &(String, Option<String>)| {
            let found = object["metadata"]["labels"][key].as_str();
            found.is_some() && (value.is_none() || found == value.as_deref())
        };
        plural == self.plural
            && self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.labels.iter().all(labelled)
            && self.fields.iter().all(|(path, value)| {
                let path = format!("/{}", path.replace('.', "/"));
                object.pointer(&path).and_then(Value::as_str) == Some(value)
            })
    }

    fn line(&self, event: &FakeWatchEvent) -> Option<Value> {
        let held = |object: &Option<Value>| object.clone().filter(|object| self.holds(&event.path, object));
        let (type_, mut object) = match (held(&event.before), held(&event.after)) {
            (None, None) => return None,
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
        };
        object["metadata"]["resourceVersion"] = json!(event.version.to_string());
        Some(json!({"type": type_, "object": object}))
    }
}

impl FakeState {
    /// Stores or removes an object, unless nothing changes. Returns the stored object.
    fn store(&mut self, path: &str, object: Option<Value>, changed: &Notify) -> Option<Value> {
        let before = self.objects.get(path).cloned();
        let mut object = object;
        if let Some(object) = &mut object {
            let metadata = |key: &str| before.as_ref().map(|before| before["metadata"][key].clone());
            object["metadata"]["resourceVersion"] = metadata("resourceVersion").unwrap_or_default();
            if before.as_ref() == Some(object) {
                return before;
            }
            self.version += 1;
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            if object["metadata"]["uid"].is_null() {
                object["metadata"]["uid"] = metadata("uid").unwrap_or(json!(format!("uid-{}", self.version)));
            }
            self.objects.insert(path.to_owned(), object.clone());
        } else {
            self.version += 1;
            self.objects.remove(path);
            self.owners.remove(path);
        }
        self.events.push(FakeWatchEvent {
            path: path.to_owned(),
            before,
            after: object.clone(),
            version: self.version,
        });
        changed.notify_waiters();
        object
    }

    fn serve(&mut self, asked: &RecordedRequest, admission: &AdmissionHook, changed: &Notify) -> (u16, Value) {
        let parts = ["status", "resize"];
        let part = parts.into_iter().find(|part| asked.path.ends_with(&format!("/{part}")));
        let part = part.unwrap_or("spec");
        let path = asked.path.trim_end_matches("/status").trim_end_matches("/resize");
        let name = path.rsplit('/').next().unwrap_or_default();
        let found = self.objects.get(path).cloned();
        match asked.method {
            Method::POST => {
                let name = asked.body["metadata"]["name"].as_str().unwrap_or("generated");
                let path = format!("{path}/{name}");
                if self.objects.contains_key(&path) {
                    return failure(409, "AlreadyExists", name);
                }
                let mut object = asked.body.clone();
                admission(&path, &mut object);
                self.owners
                    .entry(path.clone())
                    .or_default()
                    .create(&asked.manager(), &object);
                (201, self.store(&path, Some(object), changed).unwrap())
            }
            Method::GET if path.matches('/').count() <= 3 && path.ends_with(|c: char| c.is_ascii_digit()) => {
                failure(404, "NotFound", name)
            }
            Method::GET => match found {
                Some(object) => (200, object),
                None if is_collection(path) => (200, self.list(asked)),
                None => failure(404, "NotFound", name),
            },
            Method::PUT => match found {
                None => failure(404, "NotFound", name),
                Some(found) if !meets(&asked.body["metadata"], &found["metadata"]) => failure(409, "Conflict", name),
                Some(_) => (200, self.store(path, Some(asked.body.clone()), changed).unwrap()),
            },
            Method::DELETE => match found {
                None => failure(404, "NotFound", name),
                Some(found) if !meets(&asked.body["preconditions"], &found["metadata"]) => {
                    failure(409, "Conflict", name)
                }
                Some(found) => {
                    self.store(path, None, changed);
                    (200, found)
                }
            },
            _ => {
                let precondition = &asked.body["metadata"];
                if let Some(found) = &found
                    && !meets(precondition, &found["metadata"])
                {
                    return failure(409, "Conflict", name);
                }
                let (apply, exists) = (asked.query.contains("fieldManager") && is_apply(asked), found.is_some());
                if !exists && (!apply || part == "status" || !precondition["uid"].is_null()) {
                    return if apply && part != "status" {
                        failure(409, "Conflict", name)
                    } else {
                        failure(404, "NotFound", name)
                    };
                }
                if apply && exists && part != "status" && !asked.query.contains("force=true") {
                    return failure(409, "Conflict", name);
                }
                let mut object = found.unwrap_or(json!({}));
                let mut wanted = asked.body.clone();
                if part == "resize" {
                    strategic::merge(&mut object, &wanted);
                    wanted = json!({});
                }
                if part == "status" {
                    object["status"] = json!({});
                    wanted = json!({"status": wanted["status"]});
                }
                if apply && part == "spec" {
                    let owners = self.owners.entry(path.to_owned()).or_default();
                    owners.apply(&asked.manager(), &mut object, &mut wanted);
                }
                merge(&mut object, wanted);
                admission(path, &mut object);
                (200, self.store(path, Some(object), changed).unwrap())
            }
        }
    }

    fn list(&self, asked: &RecordedRequest) -> Value {
        let collection = ListedCollection::of(asked);
        let items = self
            .objects
            .iter()
            .filter(|(path, object)| collection.holds(path, object));
        // Items of a list do not carry their kind.
        let items = items.map(|(_, object)| {
            let mut object = object.clone();
            let fields = object.as_object_mut().unwrap();
            fields.remove("kind");
            fields.remove("apiVersion");
            object
        });
        // A page begins where the previous one ended.
        let from: usize = asked
            .parameter("continue")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default();
        let limit = asked.parameter("limit").and_then(|text| text.parse().ok());
        let all: Vec<Value> = items.skip(from).collect();
        let page = limit.unwrap_or(all.len()).min(all.len());
        let next = (page < all.len()).then(|| (from + page).to_string());
        let metadata = json!({"resourceVersion": self.version.to_string(), "continue": next.unwrap_or_default()});
        json!({"metadata": metadata, "items": all[..page]})
    }
}

/// Returns true for an apply, which carries its kind; a merge patch does not.
fn is_apply(asked: &RecordedRequest) -> bool {
    asked.body["kind"].is_string()
}

fn is_collection(path: &str) -> bool {
    let rest = path.split_once("/namespaces/").map_or(path, |(_, rest)| rest);
    let parts = rest.trim_matches('/').split('/').count();
    if path.contains("/namespaces/") {
        parts == 2
    } else {
        parts == 3 || parts == 4
    }
}

/// Returns true if uid and version match those in the request, if it has any.
fn meets(wanted: &Value, metadata: &Value) -> bool {
    ["uid", "resourceVersion"]
        .iter()
        .all(|key| wanted[*key].is_null() || wanted[*key] == metadata[*key])
}

fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                if value.is_null() {
                    base.remove(&key);
                } else {
                    merge(base.entry(key).or_insert(json!({})), value);
                }
            }
        }
        (base, more) => *base = more,
    }
}
