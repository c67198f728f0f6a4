use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::references::{NamedKind, check, named};
use super::*;
use crate::spec::OperatorSettings;
use crate::testing::{BEGIN, cluster, settings};

/// Returns a backup of the cluster `dev`; `more` is merged over its spec.
fn backup(destination: Value, more: Value) -> KubeBrainBackup {
    let mut spec = json!({"clusterName": "dev", "destination": destination});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({
        "apiVersion": "kubebrain.io/v1alpha1",
        "kind": "KubeBrainBackup",
        "metadata": {"name": "nightly", "namespace": "brains", "uid": "backup-uid", "generation": 1},
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn s3() -> Value {
    json!({"s3": {"bucket": "backups", "prefix": "dev", "credentialsSecretRef": {"name": "s3"}}})
}

fn volume() -> Value {
    json!({"persistentVolumeClaim": {"claimName": "backups", "path": "a/b"}})
}

fn create(backup: &KubeBrainBackup, cluster_spec: Value) -> Value {
    let cluster = cluster(cluster_spec);
    let access = ClusterAccess::of(&cluster, &settings());
    value(&create_job(backup, &access, &runtime(&cluster, &settings())))
}

fn delete(backup: &KubeBrainBackup) -> Value {
    value(&delete_job(backup, &runtime(&cluster(json!({})), &settings())))
}

fn value(job: &Job) -> Value {
    serde_json::to_value(job).unwrap()
}

fn pod(job: &Value) -> &Value {
    &job["spec"]["template"]["spec"]
}

fn args(job: &Value) -> Vec<&str> {
    let args = pod(job)["containers"][0]["args"].as_array().unwrap().iter();
    args.map(|arg| arg.as_str().unwrap()).collect()
}

/// Returns the names of variables, with a question mark after those that the Secret may leave out.
fn variables(job: &Value) -> Vec<String> {
    let all = pod(job)["containers"][0]["env"].as_array().into_iter().flatten();
    let name = |variable: &Value| {
        let optional = variable["valueFrom"]["secretKeyRef"]["optional"] == true;
        format!(
            "{}{}",
            variable["name"].as_str().unwrap(),
            if optional { "?" } else { "" }
        )
    };
    all.map(name).collect()
}

const CLUSTER_FLAGS: [&str; 4] = [
    "--endpoints=https://dev-client.brains.svc:2379",
    "--cacert=/etc/kubebrain/cluster/ca.crt",
    "--cert=/etc/kubebrain/cluster/tls.crt",
    "--key=/etc/kubebrain/cluster/tls.key",
];

#[test]
fn job_makes_one_backup_with_the_credentials_of_the_namespace() {
    let backup = backup(
        json!({"s3": {
            "bucket": "backups", "prefix": "dev", "region": "eu-central-1", "endpoint": "https://minio:9000", "pathStyle": false,
            "storageClass": "STANDARD_IA", "serverSideEncryption": "aws:kms", "kmsKeyID": "key-1",
            "credentialsSecretRef": {"name": "s3"}, "caBundleRef": {"name": "cas"},
        }}),
        json!({
            "encryption": {"keySecretRef": {"name": "secret-key", "key": "k"}}, "verify": true, "timeout": "90m", "backoffLimit": 0,
            "userSecretRef": {"name": "root"},
        }),
    );
    let job = create(&backup, json!({}));
    let destination = [
        "--destination=s3://backups/dev",
        "--destination-endpoint=https://minio:9000",
        "--destination-region=eu-central-1",
        "--destination-path-style=false",
        "--destination-ca-file=/etc/kubebrain/destination-ca/ca.crt",
        "--destination-explicit-credentials",
        "--request-id=backup-uid",
    ];
    let objects = [
        "--storage-class=STANDARD_IA",
        "--server-side-encryption=aws:kms",
        "--kms-key-id=key-1",
    ];
    let rest = [
        "--user=$(BACKUP_USER)",
        "--verify",
        "--result-file=/dev/termination-log",
    ];
    let key = ["--encryption-key-file=/etc/kubebrain/encryption/key"];
    let expected = [
        &["backup", "create"][..],
        &destination,
        &objects,
        &key,
        &CLUSTER_FLAGS,
        &rest,
    ]
    .concat();
    assert_eq!(args(&job), expected);
    assert_eq!(
        variables(&job),
        [
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN?",
            "BACKUP_USER",
            "ETCDCTL_PASSWORD"
        ]
    );
    assert_eq!(
        (&job["spec"]["backoffLimit"], &job["spec"]["activeDeadlineSeconds"]),
        (&json!(0), &json!(5400))
    );

    let job = delete(&backup);
    assert_eq!(job["metadata"]["name"], "nightly-backup-delete");
    assert_eq!(
        args(&job),
        [&["backup", "delete"][..], &destination, &["--prune-archive"]].concat()
    );
    assert_eq!(variables(&job).len(), 3);
}

#[test]
fn pods_have_no_more_rights_than_brains() {
    let job = create(
        &backup(volume(), json!({})),
        json!({"imagePullSecrets": [{"name": "pull"}]}),
    );
    assert_eq!(job["metadata"]["name"], "nightly-backup");
    let owner = &job["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["uid"], &owner["controller"], &owner["blockOwnerDeletion"]),
        (&json!("backup-uid"), &json!(true), &Value::Null)
    );
    let spec = pod(&job);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["serviceAccountName"], Value::Null);
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["fsGroup"], 65532);
    let container = &spec["containers"][0]["securityContext"];
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(spec["containers"][0]["image"], "kubebrain.io/kubebrain:0.1.0");
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    assert_eq!(labels["kubebrain.io/backup"], "nightly");
    assert_eq!(
        labels["kubebrain.io/cluster"],
        Value::Null,
        "a Service would take it for a brain"
    );
    let rule = &job["spec"]["podFailurePolicy"]["rules"][0];
    assert_eq!(rule["action"], "Ignore", "an eviction would count");
    let platform = create(&backup(volume(), json!({})), json!({"pod": {"runAs": "Platform"}}));
    assert_eq!(pod(&platform)["securityContext"]["runAsUser"], Value::Null);
}

#[test]
fn every_destination_has_its_flags() {
    let google = json!({"gcs": {"bucket": "b", "credentialsSecretRef": {"name": "google"}}});
    let job = delete(&backup(google, json!({})));
    assert_eq!(
        args(&job)[2..],
        [
            "--destination=gs://b",
            "--destination-credentials-file=/etc/kubebrain/credentials/credentials.json",
            "--destination-explicit-credentials",
            "--request-id=backup-uid",
            "--prune-archive",
        ]
    );
    let azure = json!({"azure": {"account": "acc", "container": "c", "prefix": "p", "accessTier": "Cool", "credentialsSecretRef": {"name": "az"}}});
    let job = create(&backup(azure, json!({})), json!({}));
    assert_eq!(
        args(&job)[2..5],
        [
            "--destination=az://c/p",
            "--destination-explicit-credentials",
            "--request-id=backup-uid"
        ]
    );
    assert!(args(&job).contains(&"--storage-class=Cool"));
    assert_eq!(
        pod(&job)["containers"][0]["env"][0],
        json!({"name": "AZURE_STORAGE_ACCOUNT_NAME", "value": "acc"})
    );
    assert_eq!(variables(&job).len(), 6);
    let job = delete(&backup(volume(), json!({})));
    assert_eq!(
        args(&job)[2..],
        [
            "--destination=file:///backups/a/b",
            "--request-id=backup-uid",
            "--prune-archive"
        ]
    );
    assert_eq!(pod(&job)["volumes"][1]["persistentVolumeClaim"]["claimName"], "backups");

    let identity = json!({"azure": {"account": "acc", "container": "c"}});
    let job = create(&backup(identity, json!({"serviceAccountName": "backups"})), json!({}));
    assert_eq!(pod(&job)["serviceAccountName"], "backups");
    assert_eq!(
        job["spec"]["template"]["metadata"]["labels"]["azure.workload.identity/use"],
        "true"
    );
    assert!(!args(&job).contains(&"--destination-explicit-credentials"));
}

#[test]
fn brains_are_reached_as_the_operator_reaches_them() {
    let sources = |job: &Value| -> Vec<String> {
        let volumes = pod(job)["volumes"].as_array().unwrap().iter();
        let mut sources = volumes.filter(|volume| volume["name"] == "cluster");
        let sources = sources
            .next()
            .map(|volume| volume["projected"]["sources"].clone())
            .unwrap_or_default();
        let name = |source: &Value| {
            let named = source.as_object().unwrap().iter().next().unwrap();
            format!("{} {}", named.0, named.1["name"].as_str().unwrap())
        };
        sources.as_array().into_iter().flatten().map(name).collect()
    };
    let of_operator = create(&backup(volume(), json!({})), json!({}));
    assert_eq!(
        sources(&of_operator),
        ["configMap dev-ca-bundle", "secret dev-operator-client-tls"]
    );
    let secrets = json!({
        "caBundle": {"name": "ca"}, "server": {"name": "s"}, "peer": {"name": "p"}, "operatorClient": {"name": "client"},
    });
    let given = create(
        &backup(volume(), json!({})),
        json!({"tls": {"mode": "Secret", "secrets": secrets}}),
    );
    assert_eq!(sources(&given), ["secret ca", "secret client"]);
    let clear = create(&backup(volume(), json!({})), json!({"tls": {"mode": "Disabled"}}));
    assert_eq!(sources(&clear), Vec::<String>::new());
    assert!(args(&clear).contains(&"--endpoints=http://dev-client.brains.svc:2379"));
    assert!(!args(&clear).iter().any(|arg| arg.starts_with("--cert")));
}

#[test]
fn every_object_that_a_spec_names_is_known() {
    let names = |destination: Value, more: Value| -> Vec<String> {
        let backup = backup(destination, more);
        named((&backup).into())
            .iter()
            .map(|named| format!("{} {:?} {}", named.path, named.kind, named.name))
            .collect()
    };
    let ca = json!({"kind": "Secret", "name": "cas"});
    for (store, field) in [
        ("s3", json!({"bucket": "b"})),
        ("gcs", json!({"bucket": "b"})),
        ("azure", json!({"account": "acc", "container": "c"})),
    ] {
        let mut field = field;
        field["credentialsSecretRef"] = json!({"name": "credentials"});
        field["caBundleRef"] = ca.clone();
        assert_eq!(
            names(json!({store: field}), json!({})),
            [
                format!("destination.{store}.credentialsSecretRef Secret credentials"),
                format!("destination.{store}.caBundleRef Secret cas"),
            ]
        );
    }
    assert_eq!(
        names(
            volume(),
            json!({"encryption": {"keySecretRef": {"name": "k"}}, "userSecretRef": {"name": "u"}})
        ),
        [
            "destination.persistentVolumeClaim.claimName PersistentVolumeClaim backups",
            "encryption.keySecretRef Secret k",
            "userSecretRef Secret u",
        ]
    );
    let map = json!({"s3": {"bucket": "b", "caBundleRef": {"name": "cas"}}});
    assert_eq!(named((&backup(map, json!({}))).into())[0].kind, NamedKind::ConfigMap);
}

#[test]
fn service_accounts_and_volumes_of_members_are_refused() {
    let strict = OperatorSettings {
        allow_unsafe_pods: false,
        ..settings()
    };
    let account = backup(json!({"s3": {"bucket": "b"}}), json!({"serviceAccountName": "admin"}));
    let refusal = check((&account).into(), "dev", &strict).unwrap_err();
    assert_eq!(refusal.reason, "InvalidSpec");
    assert!(refusal.message.contains("--allow-unsafe-pods"), "{}", refusal.message);
    assert_eq!(check((&account).into(), "dev", &settings()), Ok(()));
    let claim = |name: &str| {
        let claim = backup(json!({"persistentVolumeClaim": {"claimName": name}}), json!({}));
        check((&claim).into(), "dev", &strict)
    };
    assert!(
        claim("data-dev-0")
            .unwrap_err()
            .message
            .contains("belongs to the cluster dev")
    );
    assert_eq!(claim("data-dev-backups"), Ok(()));
}

#[test]
fn backup_waits_until_a_member_leads() {
    let waits = |change: fn(&mut crds::KubeBrainCluster)| {
        let mut cluster = cluster(json!({}));
        change(&mut cluster);
        waits_for("dev", Some(&cluster))
    };
    assert_eq!(
        waits_for("dev", None).as_deref(),
        Some("KubeBrainCluster dev does not exist")
    );
    assert_eq!(
        waits(|_| {}).as_deref(),
        Some("KubeBrainCluster dev is not available yet")
    );
    let available = |status: &str| {
        let condition = json!({
            "type": "Available", "status": status, "reason": "NoLeader", "message": "no member leads", "lastTransitionTime": BEGIN,
        });
        serde_json::from_value(json!({"conditions": [condition]})).ok()
    };
    let mut dev = cluster(json!({}));
    dev.status = available("False");
    assert_eq!(
        waits_for("dev", Some(&dev)).as_deref(),
        Some("KubeBrainCluster dev is not available: no member leads")
    );
    dev.status = available("True");
    assert_eq!(waits_for("dev", Some(&dev)), None);
    dev.metadata.deletion_timestamp = serde_json::from_value(json!(BEGIN)).unwrap();
    assert_eq!(
        waits_for("dev", Some(&dev)).as_deref(),
        Some("KubeBrainCluster dev is being deleted")
    );
}

fn now() -> Timestamp {
    BEGIN.parse().unwrap()
}

/// Returns the conditions as `Type=Status/Reason`, and the reasons of the Events, after the backup came to this state.
fn arrive(backup: &mut KubeBrainBackup, progress: &BackupProgress) -> (Vec<String>, Vec<&'static str>) {
    let status = status_of(backup, progress, now());
    let told = events(backup, &status).iter().map(|event| event.reason).collect();
    let conditions = status.conditions.iter().flatten();
    let conditions = conditions
        .map(|it| format!("{}={}/{}", it.type_, it.status, it.reason))
        .collect();
    backup.status = Some(status);
    (conditions, told)
}

fn result() -> BackupResult {
    BackupResult::of_pod(&ended(0, &result_json("1f"))).unwrap()
}

fn result_json(cluster: &str) -> String {
    json!({
        "name": "20261129T113542.123Z-0000000000000000042", "time": "2026-11-29T11:35:42.123Z", "revision": 42, "clusterId": cluster,
        "snapshotBytes": 4096, "sha256": "ab", "storedBytes": 1024, "encryptionKeyId": "09", "verified": true,
    })
    .to_string()
}

fn ended(code: i32, message: &str) -> Pod {
    let state = json!({"terminated": {"exitCode": code, "message": message}});
    let container =
        json!({"name": "backup", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"containerStatuses": [container]}})).unwrap()
}

#[test]
fn status_of_a_backup_follows_its_progress() {
    let mut it = backup(s3(), json!({}));
    assert!(!is_settled(&it) && !has_begun(&it));
    let waiting = BackupProgress::Waiting {
        reason: "WaitingForCluster",
        message: "dev does not exist".to_owned(),
    };
    let (conditions, told) = arrive(&mut it, &waiting);
    let expected = [
        "Complete=False/WaitingForCluster",
        "Failed=False/WaitingForCluster",
        "Reconciling=True/WaitingForCluster",
    ];
    assert_eq!(
        (conditions, told),
        (expected.map(str::to_owned).to_vec(), vec!["BackupWaiting"])
    );
    assert_eq!(arrive(&mut it, &waiting).1, Vec::<&str>::new(), "it is told again");

    let begun = first(&it, runtime(&cluster(json!({})), &settings()), now());
    assert_eq!(begun.location.as_deref(), Some("s3://backups/dev"));
    assert_eq!(
        events(&it, &begun).iter().map(|event| event.reason).collect::<Vec<_>>(),
        ["BackupStarted"]
    );
    it.status = Some(begun);
    assert!(has_begun(&it) && !has_ended(&it));
    let (_, told) = arrive(&mut it, &BackupProgress::Running("Job a is running".to_owned()));
    assert_eq!(told, Vec::<&str>::new());

    let (conditions, told) = arrive(&mut it, &BackupProgress::Complete(Some(Box::new(result())), None));
    assert_eq!(
        conditions,
        [
            "Complete=True/Completed",
            "Failed=False/Completed",
            "Reconciling=False/Completed"
        ]
    );
    assert_eq!(told, ["BackupCompleted"]);
    let status = it.status.clone().unwrap();
    assert_eq!(
        status.backup_name.as_deref(),
        Some("20261129T113542.123Z-0000000000000000042")
    );
    assert_eq!(
        (status.revision, status.bytes, status.stored_bytes),
        (Some(42), Some(4096), Some(1024))
    );
    assert_eq!(
        (status.cluster_id.as_deref(), status.sha256.as_deref()),
        (Some("1f"), Some("ab"))
    );
    assert_eq!(
        (status.encryption_key_id.as_deref(), status.verified),
        (Some("09"), Some(true))
    );
    assert!(status.start_time.is_some() && status.completion_time.is_some());
    assert!(is_settled(&it));

    let deleting = |is_trouble| BackupProgress::Deleting {
        message: "no such bucket".to_owned(),
        is_trouble,
    };
    assert_eq!(arrive(&mut it, &deleting(false)).1, Vec::<&str>::new());
    let (conditions, told) = arrive(&mut it, &deleting(true));
    assert_eq!(
        conditions,
        [
            "Complete=True/Completed",
            "Failed=False/Completed",
            "Reconciling=True/DeletionFailed"
        ]
    );
    assert_eq!(told, ["BackupDeletionFailed"]);
}

#[test]
fn failure_is_final_and_stalls() {
    let mut it = backup(s3(), json!({}));
    let failed = BackupProgress::Failed {
        reason: "BackupFailed",
        message: "no space".to_owned(),
    };
    let (conditions, told) = arrive(&mut it, &failed);
    assert_eq!(
        conditions,
        [
            "Complete=False/BackupFailed",
            "Failed=True/BackupFailed",
            "Reconciling=False/BackupFailed",
            "Stalled=True/BackupFailed"
        ]
    );
    assert_eq!(told, ["BackupFailed"]);
    assert!(has_ended(&it) && is_settled(&it));
    let mut lost = backup(s3(), json!({}));
    let (conditions, _) = arrive(&mut lost, &BackupProgress::Complete(None, None));
    assert_eq!(conditions[0], "Complete=True/ResultLost");
}

#[test]
fn finalizer_and_generation_need_a_pass() {
    let mut it = backup(s3(), json!({"deletionPolicy": "Delete"}));
    arrive(&mut it, &BackupProgress::Complete(None, None));
    assert!(!is_settled(&it), "the finalizer is missing");
    it.metadata.finalizers = Some(vec![DELETE_BACKUP.to_owned()]);
    assert!(is_settled(&it));
    it.metadata.generation = Some(2);
    assert!(!is_settled(&it), "the status is of an older spec");
    it.metadata.generation = Some(1);
    it.metadata.deletion_timestamp = serde_json::from_value(json!(BEGIN)).unwrap();
    assert!(!is_settled(&it), "its objects are still there");
    it.metadata.finalizers = None;
    assert!(is_settled(&it));
}

#[test]
fn result_of_a_pod_is_bounded_and_only_that_of_a_success() {
    assert_eq!(BackupResult::of_pod(&ended(1, &result_json("1f"))), None);
    assert_eq!(BackupResult::of_pod(&ended(0, "created 2026")), None);
    let mut it = backup(s3(), json!({}));
    let long = BackupResult::of_pod(&ended(0, &result_json(&"x\n".repeat(5000)))).unwrap();
    arrive(&mut it, &BackupProgress::Complete(Some(Box::new(long)), None));
    let id = it.status.unwrap().cluster_id.unwrap();
    assert!(id.len() <= 128 && !id.contains('\n'), "{id}");
}

mod verifications {
    use super::*;
    use crate::backup::verification::{VerificationProgress, found_damage, is_for, requested, status_of};
    use crds::backup::VerificationMode;
    use crds::backup::status::VerificationResult;

    fn complete(request: &str) -> KubeBrainBackup {
        let mut complete = backup(
            s3(),
            json!({"encryption": {"keySecretRef": {"name": "e"}}, "backoffLimit": 1, "timeout": "2h"}),
        );
        let since = Timestamp::UNIX_EPOCH;
        let condition = json!({"type": "Complete", "status": "True", "reason": "Completed", "message": "", "lastTransitionTime": since});
        complete.status = serde_json::from_value(json!({"conditions": [condition], "backupName": "b"})).unwrap();
        complete
            .metadata
            .annotations
            .get_or_insert_default()
            .insert("kubebrain.io/verify".to_owned(), request.to_owned());
        complete
    }

    #[test]
    fn request_is_handled_once_and_for_complete_backups_alone() {
        let mut backup = complete("1");
        assert_eq!(requested(&backup), Some("1"));
        assert!(!is_settled(&backup));
        let ended = VerificationProgress::Ended {
            result: VerificationResult::Verified,
            message: "read".to_owned(),
            time: None,
        };
        backup.status = Some(status_of(&backup, "1", &ended, Timestamp::UNIX_EPOCH));
        assert_eq!(requested(&backup), None);
        let again = KubeBrainBackup {
            status: backup.status.clone(),
            ..complete("2")
        };
        assert_eq!(requested(&again), Some("2"));
        assert_eq!(requested(&complete("")), None);
        assert_eq!(requested(&complete(&"x".repeat(257))), None);
        let mut running = complete("1");
        running.status = None;
        assert_eq!(requested(&running), None);
    }

    #[test]
    fn job_reads_the_backup_and_stops_at_damage() {
        let backup = complete("1");
        let job = verification_job(&backup, "b", "1", &runtime(&cluster(json!({})), &settings()));
        assert!(is_for(&job, "1") && !is_for(&job, "2"));
        let job = value(&job);
        assert_eq!(job["metadata"]["name"], "nightly-backup-verify");
        let expected = [
            "backup",
            "verify",
            "--destination=s3://backups/dev",
            "--destination-explicit-credentials",
            "--encryption-key-file=/etc/kubebrain/encryption/key",
            "b",
        ];
        assert_eq!(args(&job), expected);
        let mut restored = backup;
        restored.spec.verification_mode = VerificationMode::Restore;
        let restoring = verification_job(&restored, "b", "1", &runtime(&cluster(json!({})), &settings()));
        assert_eq!(args(&value(&restoring)), [&expected[..], &["--restore"]].concat());
        assert_eq!(job["spec"]["backoffLimit"], 1);
        assert_eq!(job["spec"]["activeDeadlineSeconds"], 7200);
        let rules = &job["spec"]["podFailurePolicy"]["rules"];
        let damage =
            json!({"action": "FailJob", "onExitCodes": {"containerName": "backup", "operator": "In", "values": [3]}});
        assert_eq!(rules[1], damage, "{rules}");
    }

    #[test]
    fn damage_is_told_from_other_failures() {
        let pod = |code: i32| -> Pod {
            let state = json!({"terminated": {"exitCode": code}});
            let status = json!({"name": "backup", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            serde_json::from_value(json!({"metadata": {}, "status": {"containerStatuses": [status]}})).unwrap()
        };
        assert!(found_damage(&pod(3)));
        assert!(!found_damage(&pod(1)));
        for (result, condition, verified, event) in [
            (
                VerificationResult::Verified,
                "True Verified",
                Some(true),
                "BackupVerified",
            ),
            (
                VerificationResult::Damaged,
                "False Damaged",
                Some(false),
                "BackupDamaged",
            ),
            (
                VerificationResult::Failed,
                "Unknown VerificationFailed",
                None,
                "BackupNotVerified",
            ),
        ] {
            let backup = complete("1");
            let ended = VerificationProgress::Ended {
                result,
                message: "parts/1".to_owned(),
                time: None,
            };
            let status = status_of(&backup, "1", &ended, Timestamp::UNIX_EPOCH);
            let conditions = status.conditions.as_ref().unwrap();
            assert_eq!(conditions[0].type_, "Complete", "the others stay");
            let found = format!("{} {}", conditions[1].status, conditions[1].reason);
            assert_eq!((found.as_str(), status.verified), (condition, verified));
            let told: Vec<_> = events(&backup, &status).iter().map(|event| event.reason).collect();
            assert_eq!(told, [event]);
            let after = KubeBrainBackup {
                status: Some(status),
                ..backup
            };
            assert_eq!(verification::is_damaged(&after), result == VerificationResult::Damaged);
            assert!(events(&after, after.status.as_ref().unwrap()).is_empty());
        }
    }
}

#[test]
fn verification_runs_the_highest_version_that_is_known() {
    let chosen = |made: &str, present: Option<&str>, default: &str| {
        let cluster = present.map(|image| {
            let mut cluster = cluster(json!({"image": {"pullPolicy": "Always"}}));
            cluster.status = Some(serde_json::from_value(json!({"image": image})).unwrap());
            cluster
        });
        let settings = OperatorSettings {
            default_image: default.to_owned(),
            ..settings()
        };
        let made = serde_json::from_value(json!({"image": made})).unwrap();
        let chosen = verifying_runtime(&made, cluster.as_ref(), &settings);
        assert_eq!(
            chosen.image_pull_policy.is_some(),
            chosen.image == present.unwrap_or_default() && chosen.image != made.image
        );
        chosen.image
    };
    let (old, new, newer) = ("a/brain:0.1.0", "b/brain:0.2.0", "b/brain:0.3.0");
    assert_eq!(chosen(old, Some(new), "c/brain:0.4.0"), new);
    assert_eq!(chosen(new, Some(old), "c/brain:0.4.0"), new);
    assert_eq!(
        chosen(old, None, newer),
        old,
        "another repository may need other secrets"
    );
    assert_eq!(chosen(new, None, newer), newer);
    assert_eq!(chosen(newer, None, new), newer);
    // Which one is newer is not known.
    let pinned = "b/brain@sha256:ab";
    assert_eq!(chosen(pinned, Some(new), newer), pinned);
    assert_eq!(chosen(new, Some(pinned), new), new);
}
