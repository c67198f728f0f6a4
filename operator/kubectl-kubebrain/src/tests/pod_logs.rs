//! Logs of the pods of a cluster, merged.

use super::*;

/// Answers a request for a log with its pod and its parameters.
fn logs_of_pods() -> FakeApi {
    FakeApi::scripted(|asked: &RecordedRequest| match asked.path.strip_suffix("/log") {
        Some(path) => {
            let pod = path.rsplit('/').next().unwrap();
            ScriptedReply::Text(format!(
                "{pod} {}\nsecond\u{1b}[2J\n",
                asked.query.trim_start_matches('&')
            ))
        }
        None => ScriptedReply::Pass,
    })
}

fn log_options(change: impl FnOnce(&mut logs::LogOptions)) -> Command {
    let mut options = logs::LogOptions {
        name: name(),
        all: false,
        since: None,
        tail: None,
        follow: false,
        previous: false,
    };
    change(&mut options);
    Command::Logs(options)
}

/// Returns the prefixes of the lines, in order.
fn prefixes(text: &str) -> Vec<&str> {
    let prefixes = text
        .lines()
        .map(|line| line.split_once("] ").unwrap().0.trim_start_matches('['));
    let all: std::collections::BTreeSet<&str> = prefixes.collect();
    all.into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn logs_have_the_names_of_their_pods() {
    let api = serving(logs_of_pods(), &three());
    put_pods(&api);
    let text = says(&api, log_options(|_| {})).await.unwrap();
    assert_eq!(prefixes(&text), ["dev-0", "dev-1", "dev-2/brain", "dev-2/proxy"]);
    assert!(text.contains("[dev-0] dev-0 container=brain\n"), "{text}");
    assert!(text.contains("[dev-2/proxy] second [2J\n"), "{text}");

    let all = says(&api, log_options(|options| options.all = true)).await.unwrap();
    let expected = [
        "b-backup-x",
        "dev-0",
        "dev-1",
        "dev-2/brain",
        "dev-2/proxy",
        "dev-archive-1-a",
        "dev-bootstrap-x",
        "dev-trial",
        "kubebrain-operator-1",
    ];
    assert_eq!(prefixes(&all), expected);

    let previous = log_options(|options| {
        options.previous = true;
        options.tail = Some(7);
        options.since = Some(Duration::from_secs(60));
    });
    let text = says(&api, previous).await.unwrap();
    assert_eq!(prefixes(&text), ["dev-1"]);
    for parameter in ["previous=true", "sinceSeconds=60", "tailLines=7"] {
        assert!(text.contains(parameter), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn logs_that_cannot_be_read_do_not_hide_others() {
    let api = FakeApi::scripted(|asked: &RecordedRequest| {
        if asked.path.ends_with("/dev-1/log") || asked.path.contains("kubebrain-system") {
            let (code, status) = failure(403, "Forbidden", "dev-1");
            return ScriptedReply::With(code, status);
        }
        match asked.path.ends_with("/log") {
            true => ScriptedReply::Text("line\n".to_owned()),
            false => ScriptedReply::Pass,
        }
    });
    let api = serving(api, &three());
    put_pods(&api);
    let mut out = Vec::new();
    let command = log_options(|options| options.all = true);
    let done = Box::pin(execute(&target(&api), command, &mut out)).await;
    let why = done.unwrap_err().to_string();
    for problem in [
        "pods of the operator: no permission to list pods in namespace kubebrain-system",
        "dev-1: no permission to get the log of pod dev-1",
    ] {
        assert!(why.contains(problem), "{why}");
    }
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("[dev-0] line\n") && !text.contains("[dev-1]"), "{text}");

    let none = says(&serving(FakeApi::new(), &three()), log_options(|_| {})).await;
    assert_eq!(none.unwrap_err(), "dev has no pods");
}
