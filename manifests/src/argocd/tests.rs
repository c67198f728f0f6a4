use crds::wishes::{RESTART, Successor, TRANSFER_LEADER};
use k8s_openapi::jiff::Timestamp;
use mlua::{Lua, LuaOptions, StdLib, Table, Value as LuaValue};
use serde_json::Map;

use super::*;

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
    let (_, script) = ACTIONS.iter().find(|(name, _)| *name == action).unwrap();
    from_lua(&run::<LuaValue>(&sandbox(), script, object))
}

#[test]
fn health_follows_the_conditions() {
    for case in cases::health() {
        let judged = from_lua(&run::<LuaValue>(&sandbox(), HEALTH, &case.object()));
        assert_eq!(
            judged,
            json!({"status": case.status, "message": case.message}),
            "{}",
            case.path()
        );
    }
}

#[test]
fn health_cases_cover_every_answer() {
    let cases = cases::health();
    for status in ["Healthy", "Suspended", "Progressing", "Degraded"] {
        assert!(cases.iter().any(|case| case.status == status), "{status}");
    }
}

#[test]
fn an_application_is_judged_by_its_own_health() {
    let judge = |status: Value| {
        from_lua(&run::<LuaValue>(
            &sandbox(),
            APPLICATION_HEALTH,
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
    let objects: BTreeMap<&str, Value> = cases::action_objects().into_iter().collect();
    let tests = cases::action_tests();
    let at = |test: &Value, field: &str| objects[test[field].as_str().unwrap()].clone();
    for test in tests["actionTests"].as_array().unwrap() {
        let name = test["action"].as_str().unwrap();
        assert_eq!(
            act(name, &at(test, "inputPath")),
            at(test, "expectedOutputPath"),
            "{name}"
        );
    }
    for test in tests["discoveryTests"].as_array().unwrap() {
        let found = from_lua(&run::<LuaValue>(&sandbox(), DISCOVERY, &at(test, "inputPath")));
        let mut expected = json!({});
        for entry in test["result"].as_array().unwrap() {
            expected[entry["name"].as_str().unwrap()] = json!({"disabled": entry["disabled"]});
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn every_discovered_action_exists() {
    let found = from_lua(&run::<LuaValue>(&sandbox(), DISCOVERY, &cases::health()[0].object()));
    let found: Vec<&str> = found.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(found, ACTIONS.map(|(name, _)| name));
}

/// Returns the annotation value that an action writes; the action changes nothing else.
fn wish(action: &str, annotation: &str) -> String {
    let mut object = cases::health()[0].object();
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
    let patch: Value = serde_yaml::from_str(&patch().unwrap()).unwrap();
    let data = &patch["data"];
    assert_eq!(
        data["resource.customizations.health.kubebrain.io_KubeBrainCluster"],
        HEALTH
    );
    let actions = data["resource.customizations.actions.kubebrain.io_KubeBrainCluster"]
        .as_str()
        .unwrap();
    let actions: Value = serde_yaml::from_str(actions).unwrap();
    assert_eq!(actions["discovery.lua"], DISCOVERY);
    for (entry, (name, lua)) in actions["definitions"].as_array().unwrap().iter().zip(ACTIONS) {
        assert_eq!((&entry["name"], &entry["action.lua"]), (&json!(name), &json!(lua)));
    }
}

#[test]
fn waves_come_in_order_and_lead_to_what_is_there() {
    let files = crate::render::files().unwrap();
    let mut waves = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with("argocd/apps/")) {
        let app: Value = serde_yaml::from_str(text).unwrap();
        let wave = &app["metadata"]["annotations"]["argocd.argoproj.io/sync-wave"];
        let source = app["spec"]["source"]["path"].as_str().unwrap();
        let directory = format!("{}/", source.strip_prefix("manifests/").unwrap());
        assert!(
            files.keys().any(|file| file.starts_with(&directory)),
            "{path}: {source}"
        );
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
