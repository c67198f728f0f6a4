//! Health and actions of Argo CD, in the Lua that it has; and the app of apps.

use std::collections::BTreeSet;

use crds::wishes::{RESTART, Successor, TRANSFER_LEADER};
use k8s_openapi::jiff::Timestamp;
use mlua::{Lua, LuaOptions, StdLib, Table, Value as LuaValue};
use serde_json::{Map, Value, json};

use crate::files::{below, objects, objects_below, only, path, text};

/// Directory of the scripts for a KubeBrainCluster, in Argo CD's own layout.
const CLUSTER: &str = "argocd/resource_customizations/kubebrain.io/KubeBrainCluster";
/// The same for a KubeBrainBackup, which has no actions.
const BACKUP: &str = "argocd/resource_customizations/kubebrain.io/KubeBrainBackup";
/// The same for a KubeBrainBackupSchedule.
const SCHEDULE: &str = "argocd/resource_customizations/kubebrain.io/KubeBrainBackupSchedule";
const APPLICATION: &str = "argocd/resource_customizations/argoproj.io/Application";

const ACTIONS: [&str; 4] = ["pause", "restart", "resume", "transfer-leader"];

fn script(name: &str) -> String {
    text(&format!("{CLUSTER}/{name}.lua"))
}

/// Returns the tests in a file, whose paths are relative to its directory.
fn tests(file: &str, list: &str) -> Vec<Value> {
    let file = only_document(&format!("{CLUSTER}/{file}"));
    file[list].as_array().unwrap().clone()
}

#[track_caller]
fn only_document(name: &str) -> Value {
    let mut all = objects(name);
    assert_eq!(all.len(), 1, "{name}");
    all.remove(0)
}

/// Returns a cluster that is healthy.
fn healthy() -> Value {
    only_document(&format!("{CLUSTER}/testdata/healthy.yaml"))
}

/// Runs a script in Lua 5.1, the version of Argo CD, with the object as `obj`.
fn run<T: mlua::FromLua>(lua: &Lua, script: &str, object: &Value) -> T {
    lua.globals().set("obj", to_lua(lua, object)).unwrap();
    lua.load(script).eval().unwrap()
}

/// Returns a Lua with only what Argo CD's sandbox offers: of the library `os`, only `date` and `time`.
fn sandbox() -> Lua {
    let lua = Lua::new_with(StdLib::TABLE | StdLib::OS | StdLib::PACKAGE, LuaOptions::default()).unwrap();
    let os: Table = lua.globals().get("os").unwrap();
    let names: Vec<String> = os.pairs::<String, LuaValue>().map(|pair| pair.unwrap().0).collect();
    for name in names.iter().filter(|name| !["date", "time"].contains(&name.as_str())) {
        os.set(name.as_str(), LuaValue::Nil).unwrap();
    }
    lua
}

fn to_lua(lua: &Lua, value: &Value) -> LuaValue {
    match value {
        Value::Null => LuaValue::Nil,
        Value::Bool(flag) => LuaValue::Boolean(*flag),
        Value::Number(number) => LuaValue::Number(number.as_f64().unwrap()),
        Value::String(text) => LuaValue::String(lua.create_string(text).unwrap()),
        Value::Array(list) => LuaValue::Table(
            lua.create_sequence_from(list.iter().map(|each| to_lua(lua, each)))
                .unwrap(),
        ),
        Value::Object(map) => {
            let pairs = map.iter().map(|(key, value)| (key.as_str(), to_lua(lua, value)));
            LuaValue::Table(lua.create_table_from(pairs).unwrap())
        }
    }
}

fn from_lua(value: &LuaValue) -> Value {
    match value {
        LuaValue::Nil => Value::Null,
        LuaValue::Boolean(flag) => json!(flag),
        LuaValue::Integer(number) => json!(number),
        #[allow(clippy::cast_possible_truncation, reason = "every number of these objects is whole")]
        LuaValue::Number(number) => json!(*number as i64),
        LuaValue::String(text) => json!(text.to_str().unwrap().to_owned()),
        LuaValue::Table(table) if table.raw_len() > 0 => table
            .sequence_values::<LuaValue>()
            .map(|each| from_lua(&each.unwrap()))
            .collect(),
        LuaValue::Table(table) => {
            let pairs = table.pairs::<String, LuaValue>().map(Result::unwrap);
            Value::Object(Map::from_iter(pairs.map(|(key, value)| (key, from_lua(&value)))))
        }
        other => panic!("unexpected {other:?}"),
    }
}

fn act(action: &str, object: &Value) -> Value {
    let script = script(&format!("actions/{action}/action"));
    from_lua(&run::<LuaValue>(&sandbox(), &script, object))
}

#[test]
fn health_follows_the_conditions() {
    let mut statuses = BTreeSet::new();
    for test in tests("health_test.yaml", "tests") {
        let input = test["inputPath"].as_str().unwrap();
        let object = only_document(&format!("{CLUSTER}/{input}"));
        let judged = from_lua(&run::<LuaValue>(&sandbox(), &script("health"), &object));
        assert_eq!(judged, test["healthStatus"], "{input}");
        statuses.insert(judged["status"].as_str().unwrap().to_owned());
    }
    assert_eq!(
        statuses.into_iter().collect::<Vec<_>>(),
        ["Degraded", "Healthy", "Progressing", "Suspended"]
    );
}

/// Judges the objects for tests in a directory, which are valid, and checks that all of them are used. Returns each status that occurs.
fn judge_all(directory: &str, check: fn(Value) -> Result<(), String>) -> Vec<String> {
    let file = only_document(&format!("{directory}/health_test.yaml"));
    let (mut statuses, mut used) = (BTreeSet::new(), BTreeSet::new());
    for test in file["tests"].as_array().unwrap() {
        let input = format!("{directory}/{}", test["inputPath"].as_str().unwrap());
        let object = only_document(&input);
        let script = text(&format!("{directory}/health.lua"));
        let judged = from_lua(&run::<LuaValue>(&sandbox(), &script, &object));
        assert_eq!(judged, test["healthStatus"], "{input}");
        statuses.insert(judged["status"].as_str().unwrap().to_owned());
        check(object).unwrap_or_else(|error| panic!("{input}: {error}"));
        used.insert(input);
    }
    assert_eq!(used, below(&format!("{directory}/testdata")).into_iter().collect());
    statuses.into_iter().collect()
}

#[test]
fn health_of_a_backup_follows_its_conditions() {
    let statuses = judge_all(BACKUP, |object| {
        let backup: crds::KubeBrainBackup = serde_json::from_value(object).unwrap();
        backup.validate_cel().map_err(|error| format!("{error:?}"))
    });
    assert_eq!(statuses, ["Degraded", "Healthy", "Progressing"]);
}

#[test]
fn health_of_a_schedule_follows_its_conditions() {
    let statuses = judge_all(SCHEDULE, |object| {
        let schedule: crds::KubeBrainBackupSchedule = serde_json::from_value(object).unwrap();
        schedule.validate_cel().map_err(|error| format!("{error:?}"))
    });
    assert_eq!(statuses, ["Degraded", "Healthy", "Progressing", "Suspended"]);
}

#[test]
fn every_object_for_tests_is_used() {
    let (mut used, mut made) = (BTreeSet::new(), BTreeSet::new());
    for (file, list) in [
        ("health_test.yaml", "tests"),
        ("actions/action_test.yaml", "discoveryTests"),
        ("actions/action_test.yaml", "actionTests"),
    ] {
        let directory = file
            .rsplit_once('/')
            .map_or(String::new(), |(directory, _)| format!("{directory}/"));
        for test in tests(file, list) {
            let paths = [&test["inputPath"], &test["expectedOutputPath"]]
                .into_iter()
                .filter_map(Value::as_str);
            used.extend(paths.map(|path| format!("{CLUSTER}/{directory}{path}")));
        }
    }
    for directory in ["testdata", "actions/testdata"] {
        made.extend(below(&format!("{CLUSTER}/{directory}")));
    }
    assert_eq!(used, made);
}

/// The objects for tests differ in what is judged alone.
#[test]
fn objects_for_tests_are_one_cluster() {
    let whole = healthy();
    let all = objects_below(CLUSTER)
        .into_iter()
        .filter(|(name, _)| name.contains("/testdata/"));
    for (name, mut object) in all {
        assert_eq!(object["metadata"], whole["metadata"], "{name}");
        let spec = object["spec"].as_object_mut().unwrap();
        spec.remove("paused");
        spec["replicas"] = whole["spec"]["replicas"].clone();
        assert_eq!(object["spec"], whole["spec"], "{name}");
        let cluster: crds::KubeBrainCluster = serde_json::from_value(object).unwrap();
        cluster
            .validate_cel()
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
}

#[test]
fn an_application_is_judged_by_its_own_health() {
    let judge = |status: Value| {
        from_lua(&run::<LuaValue>(
            &sandbox(),
            &text(&format!("{APPLICATION}/health.lua")),
            &json!({"status": status}),
        ))
    };
    assert_eq!(
        judge(json!({"health": {"status": "Degraded", "message": "broken"}})),
        json!({"status": "Degraded", "message": "broken"})
    );
    for (sync, phase, health) in [
        ("Synced", "Succeeded", "Healthy"),
        ("Synced", "Running", "Progressing"),
        ("OutOfSync", "Succeeded", "Progressing"),
        ("OutOfSync", "Running", "Progressing"),
    ] {
        let status = json!({
            "health": {"status": "Healthy"},
            "operationState": {"phase": phase},
            "sync": {"status": sync},
        });
        assert_eq!(judge(status)["status"], health, "{sync}, {phase}");
    }
    assert_eq!(judge(json!({}))["status"], "Progressing");
    assert_eq!(judge(json!(null))["status"], "Progressing");
}

#[test]
fn actions_do_as_their_test_file_says() {
    let at = |test: &Value, field: &str| only_document(&format!("{CLUSTER}/actions/{}", test[field].as_str().unwrap()));
    let (actions, discoveries) = ("actionTests", "discoveryTests");
    let (actions, discoveries) = (
        tests("actions/action_test.yaml", actions),
        tests("actions/action_test.yaml", discoveries),
    );
    assert_eq!((actions.len(), discoveries.len()), (2, 2));
    for test in actions {
        let name = test["action"].as_str().unwrap();
        assert_eq!(
            act(name, &at(&test, "inputPath")),
            at(&test, "expectedOutputPath"),
            "{name}"
        );
    }
    for test in discoveries {
        let found = from_lua(&run::<LuaValue>(
            &sandbox(),
            &script("actions/discovery"),
            &at(&test, "inputPath"),
        ));
        let mut expected = json!({});
        for entry in test["result"].as_array().unwrap() {
            expected[entry["name"].as_str().unwrap()] = json!({"disabled": entry["disabled"]});
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn every_discovered_action_exists() {
    let found = from_lua(&run::<LuaValue>(&sandbox(), &script("actions/discovery"), &healthy()));
    let found: Vec<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, ACTIONS);
    let mut files = below(&format!("{CLUSTER}/actions"));
    files.retain(|name| name.ends_with("/action.lua"));
    assert_eq!(
        files,
        ACTIONS.map(|name| format!("{CLUSTER}/actions/{name}/action.lua"))
    );
}

/// Returns the annotation value that an action writes; the action changes nothing else.
fn wish(action: &str, annotation: &str) -> String {
    let mut object = healthy();
    let bare = act(action, &object);
    assert!(bare["metadata"]["annotations"][annotation].is_string(), "{action}");
    object["metadata"]["annotations"] = json!({"mine": "stays"});
    let mut changed = act(action, &object);
    let annotations = changed["metadata"]["annotations"].as_object_mut().unwrap();
    let written = annotations.remove(annotation).unwrap();
    assert_eq!(changed, object, "{action}");
    written.as_str().unwrap().to_owned()
}

#[test]
fn restart_and_transfer_leader_write_wishes_that_the_operator_reads() {
    let restart = wish("restart", RESTART);
    restart.parse::<Timestamp>().unwrap();
    let transfer = wish("transfer-leader", TRANSFER_LEADER);
    assert_eq!(Successor::of(&transfer), Successor::Any, "{transfer}");
    // The time makes it differ from the previous request.
    let (_, time) = transfer.split_once('@').unwrap();
    time.parse::<Timestamp>().unwrap();
}

#[test]
fn the_patch_has_the_same_scripts() {
    let patch = only_document("argocd/argocd-cm-patch.yaml");
    let data = &patch["data"];
    assert_eq!(
        data["resource.customizations.health.kubebrain.io_KubeBrainCluster"],
        script("health")
    );
    assert_eq!(
        data["resource.customizations.health.kubebrain.io_KubeBrainBackup"],
        text(&format!("{BACKUP}/health.lua"))
    );
    assert_eq!(
        data["resource.customizations.health.kubebrain.io_KubeBrainBackupSchedule"],
        text(&format!("{SCHEDULE}/health.lua"))
    );
    assert_eq!(
        data["resource.customizations.health.argoproj.io_Application"],
        text(&format!("{APPLICATION}/health.lua"))
    );
    let actions = data["resource.customizations.actions.kubebrain.io_KubeBrainCluster"]
        .as_str()
        .unwrap();
    let actions: Value = serde_yaml::from_str(actions).unwrap();
    assert_eq!(actions["discovery.lua"], script("actions/discovery"));
    let definitions = actions["definitions"].as_array().unwrap();
    assert_eq!(definitions.len(), ACTIONS.len());
    for (entry, name) in definitions.iter().zip(ACTIONS) {
        let lua = script(&format!("actions/{name}/action"));
        assert_eq!((&entry["name"], &entry["action.lua"]), (&json!(name), &json!(lua)));
    }
}

#[test]
fn waves_come_in_order_and_lead_to_what_is_there() {
    let mut waves = Vec::new();
    for (file, app) in objects_below("argocd/apps") {
        let wave = &app["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"];
        let source = app["spec"]["source"]["path"].as_str().unwrap();
        assert!(path("..").join(source).is_dir(), "{file}: {source}");
        waves.push((
            wave.as_str().unwrap().parse::<i32>().unwrap(),
            app["metadata"]["name"].as_str().unwrap().to_owned(),
        ));
    }
    waves.sort();
    let names: Vec<(i32, &str)> = waves.iter().map(|(wave, name)| (*wave, name.as_str())).collect();
    assert_eq!(
        names,
        [
            (-2, "kubebrain-definition"),
            (-1, "kubebrain-operator"),
            (0, "tenant-secrets"),
            (1, "tenant-cluster"),
            (2, "tenant-apiserver"),
        ]
    );
}

/// Applications differ in name, wave, path, namespace and options of a sync alone.
#[test]
fn applications_are_synced_alike() {
    let root = only("argocd/app-of-apps.yaml", "Application");
    assert_eq!(root["spec"]["source"]["path"], "manifests/argocd/apps");
    let bare = |mut app: Value| {
        app["metadata"] = json!({"namespace": app["metadata"]["namespace"]});
        app["spec"]["source"]["path"].take();
        app["spec"]["destination"]["namespace"].take();
        app["spec"]["syncPolicy"].as_object_mut().unwrap().remove("syncOptions");
        app
    };
    for (file, app) in objects_below("argocd/apps") {
        assert_eq!(bare(app), bare(root.clone()), "{file}");
    }
}
