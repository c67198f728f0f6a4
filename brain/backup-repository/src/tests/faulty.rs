//! A store in memory whose requests fail on command.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// A way in which a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fault {
    /// Nothing is stored.
    Put,
    /// It is stored, and the answer is lost.
    PutLost,
    PutPart,
    Complete,
    Get,
    /// The answer ends in the middle.
    GetTruncated,
    /// The store refuses to answer.
    Refuse,
    /// There is no bucket.
    Gone,
    List,
    Delete,
}

/// How many requests pass, and how many fail after them.
#[derive(Debug, Default)]
struct Faults(Mutex<HashMap<Fault, (usize, usize)>>);

impl Faults {
    fn is_due(&self, fault: Fault) -> bool {
        let mut faults = self.0.lock().unwrap();
        match faults.get_mut(&fault) {
            Some((passing, _)) if *passing > 0 => {
                *passing -= 1;
                false
            }
            Some((_, failing)) if *failing > 0 => {
                *failing -= 1;
                true
            }
            _ => false,
        }
    }

    fn check(&self, fault: Fault) -> Result<()> {
        if self.is_due(fault) {
            Err(failure(fault))
        } else {
            Ok(())
        }
    }
}

fn failure(fault: Fault) -> Error {
    match fault {
        Fault::Refuse => Error::PermissionDenied {
            path: String::new(),
            source: "denied".into(),
        },
        Fault::Gone => Error::NotFound {
            path: String::new(),
            source: "no bucket".into(),
        },
        _ => Error::Generic {
            store: "faulty",
            source: format!("{fault:?}").into(),
        },
    }
}

#[derive(Debug, Default)]
pub(super) struct FaultyStore {
    inner: InMemory,
    faults: Arc<Faults>,
    gets: Mutex<usize>,
}

impl FaultyStore {
    /// Lets the next requests fail.
    pub(super) fn fail(&self, fault: Fault, times: usize) {
        self.pass_then_fail(fault, 0, times);
    }

    /// Lets requests fail after some.
    pub(super) fn pass_then_fail(&self, fault: Fault, passing: usize, failing: usize) {
        self.faults.0.lock().unwrap().insert(fault, (passing, failing));
    }

    /// Returns the number of failures that have not happened.
    pub(super) fn left(&self) -> usize {
        self.faults.0.lock().unwrap().values().map(|(_, failing)| failing).sum()
    }

    pub(super) fn gets(&self) -> usize {
        *self.gets.lock().unwrap()
    }
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.faults.check(Fault::Put)?;
        let put = self.inner.put_opts(location, payload, options).await?;
        self.faults.check(Fault::PutLost)?;
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(FaultyUpload {
            upload,
            faults: self.faults.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        *self.gets.lock().unwrap() += 1;
        self.faults.check(Fault::Get)?;
        self.faults.check(Fault::Refuse)?;
        self.faults.check(Fault::Gone)?;
        let mut got = self.inner.get_opts(location, options).await?;
        if got.meta.size > 1 << 20 && self.faults.is_due(Fault::GetTruncated) {
            let range = got.range.clone();
            let meta = got.meta.clone();
            let attributes = got.attributes.clone();
            let extensions = got.extensions.clone();
            let bytes = got.bytes().await?;
            let some: Vec<Result<Bytes>> = vec![Ok(bytes.slice(..bytes.len() / 2)), Err(failure(Fault::GetTruncated))];
            got = GetResult {
                payload: GetResultPayload::Stream(stream::iter(some).boxed()),
                meta,
                range,
                attributes,
                extensions,
            };
        }
        Ok(got)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        match self.faults.check(Fault::Delete) {
            Ok(()) => self.inner.delete_stream(locations),
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self
            .faults
            .check(Fault::List)
            .and_then(|()| self.faults.check(Fault::Gone))
        {
            Ok(()) => self.inner.list(prefix),
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    upload: Box<dyn MultipartUpload>,
    faults: Arc<Faults>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match self.faults.check(Fault::PutPart) {
            Ok(()) => self.upload.put_part(data),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.faults.check(Fault::Complete)?;
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}
