//! A connection to one member, for requests of a round.

use anyhow::Context as _;
use pb::kv_client::KvClient;
use pb::request_op::Request as AnyRequest;
use pb::response_op::Response as AnyResponse;
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use wire::etcdserverpb as pb;

use super::{REQUEST_TIMEOUT, RoundState, messages};
use crate::history::{Answer, Op, Operation, Outcome, Request, RequestMethod};

/// etcd's message for a revision that is gone.
const COMPACTED_MESSAGE: &str = "etcdserver: mvcc: required revision has been compacted";

/// Codes of such errors. Any other is a wrong answer.
const EXPECTED_CODES: [Code; 5] = [
    Code::Unavailable,
    Code::DeadlineExceeded,
    Code::Cancelled,
    Code::ResourceExhausted,
    Code::Unknown,
];

/// One client of one member.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) member: usize,
    pub(crate) channel: Channel,
}

impl Client {
    /// Does it, and writes down what happened.
    ///
    /// # Errors
    ///
    /// The answer is none that etcd would give.
    pub(crate) async fn call(&self, round: &RoundState, request: Request) -> anyhow::Result<Operation> {
        let called = round.at();
        let answered = timeout(REQUEST_TIMEOUT, self.send(round, &request)).await;
        let returned = round.at();
        let outcome = match answered {
            Ok(Ok(response)) => {
                let answer = answer(&response).with_context(|| format!("the answer to {request:?}"))?;
                round.saw(answer.revision);
                Outcome::Answered(answer)
            }
            Ok(Err(status)) if status.message() == COMPACTED_MESSAGE => Outcome::Compacted,
            Ok(Err(status)) if is_trouble(&status) => Outcome::Unknown(status.message().to_owned()),
            Ok(Err(status)) => return Err(status).with_context(|| format!("{request:?} at member {}", self.member)),
            Err(_) => Outcome::Unknown(format!("no answer within {REQUEST_TIMEOUT:?}")),
        };
        Ok(Operation {
            client: self.number,
            member: self.member,
            called,
            returned,
            request,
            outcome,
        })
    }

    async fn send(&self, round: &RoundState, request: &Request) -> Result<pb::TxnResponse, Status> {
        let mut kv = KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let op = |op: &Op| messages::any(op, round.padding, request.method == RequestMethod::Serializable);
        if request.method == RequestMethod::Txn {
            let ops = |ops: &[Op]| {
                let request = |it: &Op| pb::RequestOp { request: Some(op(it)) };
                ops.iter().map(request).collect()
            };
            let txn = pb::TxnRequest {
                compare: request
                    .compares
                    .iter()
                    .map(|it| messages::compare(it, round.padding))
                    .collect(),
                success: ops(&request.then),
                failure: ops(&request.otherwise),
            };
            return kv.txn(txn).await.map(Response::into_inner);
        }
        let Some(only) = request.then.first() else {
            return Err(Status::invalid_argument("nothing to do"));
        };
        let (header, response) = match op(only) {
            AnyRequest::RequestPut(put) => {
                let answer = kv.put(put).await?.into_inner();
                (answer.header, AnyResponse::ResponsePut(answer))
            }
            AnyRequest::RequestDeleteRange(delete) => {
                let answer = kv.delete_range(delete).await?.into_inner();
                (answer.header, AnyResponse::ResponseDeleteRange(answer))
            }
            AnyRequest::RequestRange(range) => {
                let answer = kv.range(range).await?.into_inner();
                (answer.header, AnyResponse::ResponseRange(answer))
            }
            AnyRequest::RequestTxn(_) => return Err(Status::invalid_argument("a txn in a txn")),
        };
        Ok(pb::TxnResponse {
            header,
            succeeded: true,
            responses: vec![pb::ResponseOp {
                response: Some(response),
            }],
        })
    }
}

/// Returns true if the server, or the connection to it, fails. Our own side calls a connection that broke an internal error.
pub(super) fn is_trouble(status: &Status) -> bool {
    let broke = status.code() == Code::Internal && status.message().starts_with("h2 protocol error");
    broke || EXPECTED_CODES.contains(&status.code())
}

fn answer(response: &pb::TxnResponse) -> anyhow::Result<Answer> {
    let done = response.responses.iter().map(|response| {
        let response = response.response.as_ref().context("an operation without an answer")?;
        messages::done(response)
    });
    Ok(Answer {
        revision: response.header.as_ref().context("an answer without a header")?.revision,
        succeeded: response.succeeded,
        done: done.collect::<anyhow::Result<_>>()?,
    })
}
