//! Backups over the protocol of S3, against a small server of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, Response, StatusCode};
use backup::snapshot::Spool;
use chrono::{DateTime, Utc};
use object_store::ObjectStoreExt as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;

use super::{create, snapshot};
use crate::{CreateOptions, DestinationOptions, EncryptionKey, Repository, Variables};

/// Objects of the server, and the requests that it got.
#[derive(Default)]
struct Bucket {
    objects: BTreeMap<String, Bytes>,
    uploads: HashMap<String, BTreeMap<u32, Bytes>>,
    /// The requests that were authorized, and headers of those that write.
    asked: Vec<String>,
    /// Answers of this kind are left.
    unavailable: usize,
}

type Shared = Arc<Mutex<Bucket>>;

fn answer(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let etag = ("etag", "\"etag\"");
    let modified = DateTime::<Utc>::UNIX_EPOCH.to_rfc2822().replace("+0000", "GMT");
    Response::builder()
        .status(status)
        .header(etag.0, etag.1)
        .header("last-modified", modified)
        .body(body.into())
        .unwrap()
}

fn element<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let parts = xml.split(&*begin).skip(1);
    parts.map(|part| part.split(&*end).next().unwrap()).collect()
}

async fn serve(State(bucket): State<Shared>, request: Request) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let query = head.uri.query().unwrap_or_default();
    let query: HashMap<&str, String> = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (name, value.replace("%2F", "/")))
        .collect();
    let key = head.uri.path().strip_prefix("/bucket").unwrap_or_default();
    let key = key.trim_start_matches('/').to_owned();
    let header = |name: &str| head.headers.get(name).map_or("", |value| value.to_str().unwrap());
    let mut bucket = bucket.lock().unwrap();
    if !header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=ONE/")
        || !header("authorization").contains("/eu-test-1/s3/")
    {
        return answer(StatusCode::FORBIDDEN, "");
    }
    if bucket.unavailable > 0 {
        bucket.unavailable -= 1;
        return answer(StatusCode::SERVICE_UNAVAILABLE, "");
    }
    let extra = [header("x-amz-storage-class"), header("x-amz-server-side-encryption")].join(" ");
    bucket
        .asked
        .push(format!("{} {extra}", head.method).trim_end().to_owned());
    match head.method {
        Method::PUT => match query.get("uploadId") {
            Some(id) => {
                let number = query["partNumber"].parse().unwrap();
                bucket.uploads.get_mut(id).unwrap().insert(number, body);
                answer(StatusCode::OK, "")
            }
            None => {
                bucket.objects.insert(key, body);
                answer(StatusCode::OK, "")
            }
        },
        Method::POST if query.contains_key("uploads") => {
            let id = format!("upload-{}", bucket.uploads.len());
            bucket.uploads.insert(id.clone(), BTreeMap::new());
            let xml = format!(
                "<InitiateMultipartUploadResult><Bucket>bucket</Bucket><Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            );
            answer(StatusCode::OK, xml)
        }
        Method::POST if query.contains_key("delete") => {
            let xml = std::str::from_utf8(&body).unwrap();
            let keys = element(xml, "Key");
            keys.iter().for_each(|key| drop(bucket.objects.remove(*key)));
            let deleted: String = keys
                .iter()
                .map(|key| format!("<Deleted><Key>{key}</Key></Deleted>"))
                .collect();
            answer(StatusCode::OK, format!("<DeleteResult>{deleted}</DeleteResult>"))
        }
        Method::POST => {
            let parts = bucket.uploads.remove(&query["uploadId"]).unwrap();
            let whole: Vec<u8> = parts.values().flat_map(|part| part.to_vec()).collect();
            bucket.objects.insert(key.clone(), whole.into());
            let xml = format!(
                "<CompleteMultipartUploadResult><Location>l</Location><Bucket>bucket</Bucket><Key>{key}</Key><ETag>\"e\"</ETag></CompleteMultipartUploadResult>"
            );
            answer(StatusCode::OK, xml)
        }
        Method::DELETE => {
            bucket.objects.remove(&key);
            answer(StatusCode::NO_CONTENT, "")
        }
        _ if query.contains_key("list-type") => {
            let found = bucket
                .objects
                .iter()
                .filter(|(key, _)| key.starts_with(&query["prefix"]));
            let found = found.map(|(key, content)| {
                let (size, time) = (content.len(), Utc::now().to_rfc3339());
                format!("<Contents><Key>{key}</Key><LastModified>{time}</LastModified><ETag>\"e\"</ETag><Size>{size}</Size></Contents>")
            });
            let found: String = found.collect();
            answer(
                StatusCode::OK,
                format!("<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"),
            )
        }
        _ => match bucket.objects.get(&key) {
            Some(content) => answer(StatusCode::OK, content.clone()),
            None => answer(StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>"),
        },
    }
}

async fn start(bucket: &Shared) -> (JoinSet<()>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(serve).with_state(bucket.clone());
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (server, endpoint)
}

fn variables(key: &str) -> Variables {
    let all = [
        ("AWS_ACCESS_KEY_ID", key),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_REGION", "eu-test-1"),
    ];
    Variables::of(all.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

#[tokio::test]
async fn backup_is_stored_read_and_deleted_over_s3() {
    let dir = TempDir::new().unwrap();
    let bucket = Shared::default();
    let (_server, endpoint) = start(&bucket).await;
    let destination = DestinationOptions {
        url: "s3://bucket/some/prefix".to_owned(),
        endpoint: Some(endpoint),
        storage_class: Some("STANDARD_IA".to_owned()),
        server_side_encryption: Some("AES256".to_owned()),
        variables: variables("ONE"),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&destination).unwrap();
    assert_eq!(repository.names().await.unwrap(), []);
    let key = EncryptionKey::new(&[1; 32]);
    let options = CreateOptions::new(Some(key.clone()), Spool::new(dir.path()));
    let whole = snapshot(20 << 20);
    // The client of the store repeats what is answered so.
    bucket.lock().unwrap().unavailable = 1;
    let manifest = create(&repository, 7, &whole, &options).await.unwrap();
    {
        let bucket = bucket.lock().unwrap();
        let keys: Vec<_> = bucket.objects.keys().cloned().collect();
        let expected = [manifest.name.manifest(), manifest.parts[0].object.clone()];
        assert_eq!(keys, expected.map(|object| format!("some/prefix/{object}")));
        assert_eq!(bucket.uploads.len(), 0);
        let begun = bucket.asked.iter().filter(|asked| *asked == "POST STANDARD_IA AES256");
        let put = bucket.asked.iter().filter(|asked| *asked == "PUT STANDARD_IA AES256");
        assert_eq!((begun.count(), put.count()), (1, 1), "{:?}", bucket.asked);
    }
    let name = manifest.name.clone();
    assert_eq!(repository.names().await.unwrap(), std::slice::from_ref(&name));
    assert_eq!(repository.manifest(&name).await.unwrap(), manifest);
    let read = repository.read_snapshot(&manifest, &[key], Vec::new()).await.unwrap();
    assert!(read == whole);
    repository.delete(&name).await.unwrap();
    assert_eq!(bucket.lock().unwrap().objects.len(), 0);
    let error = repository.manifest(&name).await.unwrap_err().to_string();
    assert_eq!(error, format!("{} is missing", name.manifest()));
}

#[tokio::test]
async fn refused_credentials_are_an_error_at_once() {
    let bucket = Shared::default();
    let (_server, endpoint) = start(&bucket).await;
    let destination = DestinationOptions {
        url: "s3://bucket".to_owned(),
        endpoint: Some(endpoint),
        variables: variables("TWO"),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&destination).unwrap();
    let error = repository.names().await.unwrap_err();
    assert_eq!(error.to_string(), "cannot access manifests");
}

#[tokio::test]
async fn destination_that_answers_nothing_has_failed_after_half_a_minute() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = DestinationOptions {
        url: "s3://bucket".to_owned(),
        endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
        variables: variables("ONE"),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&destination).unwrap();
    let failure = repository.last_failure();
    let mut is_silent = true;
    let serve = async {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            assert!(connection.read(&mut [0; 1024]).await.unwrap() > 0);
            if std::mem::take(&mut is_silent) {
                assert_eq!(failure.get(), None);
                tokio::time::pause();
                tokio::time::advance(Duration::from_secs(30)).await;
                let expected = "no request was answered for 30 s or more";
                assert_eq!(failure.get().as_deref(), Some(expected));
                tokio::time::resume();
            }
            let list = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
            let length = list.len();
            let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{list}");
            connection.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    tokio::select! {
        asked = repository.names() => assert_eq!(asked.unwrap(), []),
        () = serve => {}
    }
    assert!(!is_silent);
    assert_eq!(failure.get(), None);
}

/// The request takes three times as long as a destination may take nothing of it.
#[tokio::test]
async fn slow_upload_goes_on_while_the_destination_takes_more_of_it() {
    const BYTES: usize = 32 << 20;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let destination = DestinationOptions {
        url: "s3://bucket".to_owned(),
        endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
        variables: variables("ONE"),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&destination).unwrap();
    let failure = repository.last_failure();
    let serve = async {
        let (mut connection, _) = listener.accept().await.unwrap();
        let mut quarter = vec![0; BYTES / 4];
        for _ in 0..3 {
            connection.read_exact(&mut quarter).await.unwrap();
            assert_eq!(failure.get(), None);
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(59)).await;
            tokio::time::resume();
            assert!(failure.get().is_some(), "nothing was taken for so long");
        }
        connection.read_exact(&mut quarter).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\netag: \"e\"\r\ncontent-length: 0\r\n\r\n";
        connection.write_all(answer).await.unwrap();
        // The head of the request is as long as what is left of its body.
        while connection.read(&mut quarter).await.unwrap() > 0 {}
    };
    let path = object_store::path::Path::from("slow");
    let upload = repository.store.put(&path, vec![7; BYTES].into());
    tokio::select! {
        stored = upload => drop(stored.unwrap()),
        () = serve => panic!("the connection was closed"),
    }
    assert_eq!(failure.get(), None);
}

#[tokio::test]
async fn credentials_come_from_a_file_too() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("credentials");
    std::fs::write(&file, "[default]\naws_access_key_id = ONE\naws_secret_access_key = s\n").unwrap();
    let bucket = Shared::default();
    let (_server, endpoint) = start(&bucket).await;
    let destination = DestinationOptions {
        url: "s3://bucket".to_owned(),
        endpoint: Some(endpoint),
        region: Some("eu-test-1".to_owned()),
        credentials_file: Some(file),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&destination).unwrap();
    assert_eq!(repository.names().await.unwrap(), []);
    assert_eq!(bucket.lock().unwrap().asked, ["GET"]);
}

#[tokio::test]
async fn credentials_in_a_directory_are_followed() {
    let dir = TempDir::new().unwrap();
    let write = |name: &str, value: &str| std::fs::write(dir.path().join(name), value).unwrap();
    write("AWS_ACCESS_KEY_ID", "TWO");
    write("AWS_SECRET_ACCESS_KEY", "s");
    let bucket = Shared::default();
    let (_server, endpoint) = start(&bucket).await;
    let destination = DestinationOptions {
        url: "s3://bucket".to_owned(),
        endpoint: Some(endpoint),
        region: Some("eu-test-1".to_owned()),
        credentials_dir: Some(dir.path().to_owned()),
        explicit_credentials: true,
        variables: variables("THREE"),
        ..DestinationOptions::default()
    };
    let repository = Repository::open(&destination).unwrap();
    let wait = || async {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(1)).await;
        tokio::time::resume();
    };
    repository.names().await.unwrap_err();
    write("AWS_ACCESS_KEY_ID", "ONE");
    wait().await;
    assert_eq!(repository.names().await.unwrap(), []);
    // Files that no client can be made of change nothing.
    std::fs::write(dir.path().join("AWS_ACCESS_KEY_ID"), [0xff]).unwrap();
    wait().await;
    assert_eq!(repository.names().await.unwrap(), []);
    write("AWS_ACCESS_KEY_ID", "TWO");
    wait().await;
    repository.names().await.unwrap_err();
}
