// Copyright 2021 TiKV Project Authors. Licensed under Apache-2.0.

//! The plan that sends a request to each store.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::try_join_all;
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::is_grpc_error;
use super::tasks::nobody_waits;
use super::tasks::EndOfRequest;
use super::Plan;
use crate::backoff::Backoff;
use crate::pd::PdClient;
use crate::request::StoreRequest;
use crate::store::HasKeyErrors;
use crate::store::HasRegionError;
use crate::Error;
use crate::Result;

const MULTI_STORES_CONCURRENCY: usize = 16;

pub(crate) struct RetryableAllStores<P: Plan, PdC: PdClient> {
    pub(crate) inner: P,
    pub pd_client: Arc<PdC>,
    pub backoff: Backoff,
}

impl<P: Plan, PdC: PdClient> Clone for RetryableAllStores<P, PdC> {
    fn clone(&self) -> Self {
        RetryableAllStores {
            inner: self.inner.clone(),
            pd_client: self.pd_client.clone(),
            backoff: self.backoff.clone(),
        }
    }
}

// About `HasRegionError`:
// Store requests should be return region errors.
// But as the response of only store request by now (UnsafeDestroyRangeResponse) has the `region_error` field,
// we require `HasRegionError` to check whether there is region error returned from TiKV.
#[async_trait]
impl<P: Plan + StoreRequest, PdC: PdClient> Plan for RetryableAllStores<P, PdC>
where
    P::Result: HasKeyErrors + HasRegionError,
{
    type Result = Vec<Result<P::Result>>;

    async fn execute(&self) -> Result<Self::Result> {
        let concurrency_permits = Arc::new(Semaphore::new(MULTI_STORES_CONCURRENCY));
        let _ends = EndOfRequest(concurrency_permits.clone());
        let stores = self.pd_client.clone().all_stores().await?;
        let mut handles = Vec::with_capacity(stores.len());
        for store in stores {
            let mut clone = self.inner.clone();
            clone.apply_store(&store);
            let handle = tokio::spawn(Self::single_store_handler(
                clone,
                self.backoff.clone(),
                concurrency_permits.clone(),
            ));
            handles.push(handle);
        }
        let results = try_join_all(handles).await?;
        Ok(results.into_iter().collect::<Vec<_>>())
    }
}

impl<P: Plan, PdC: PdClient> RetryableAllStores<P, PdC>
where
    P::Result: HasKeyErrors + HasRegionError,
{
    async fn single_store_handler(plan: P, mut backoff: Backoff, permits: Arc<Semaphore>) -> Result<P::Result> {
        loop {
            let permit = permits.acquire().await.map_err(nobody_waits)?;
            let res = plan.execute().await;
            drop(permit);

            match res {
                Ok(mut resp) => {
                    if let Some(e) = resp.key_errors() {
                        return Err(Error::MultipleKeyErrors(e));
                    } else if let Some(e) = resp.region_error() {
                        // Store request should not return region error.
                        return Err(Error::RegionError(Box::new(e)));
                    } else {
                        return Ok(resp);
                    }
                }
                Err(e) if is_grpc_error(&e) => match backoff.next_delay_duration().filter(|_| !permits.is_closed()) {
                    Some(duration) => {
                        sleep(duration).await;
                        continue;
                    }
                    None => return Err(e),
                },
                Err(e) => return Err(e),
            }
        }
    }
}
