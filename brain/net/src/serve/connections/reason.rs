//! Why a connection is closed.

/// The reason why this side closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) enum CloseReason {
    /// No complete request arrived in time.
    NoRequest,
    /// There was no open stream for a long time.
    Idle,
    /// The client reads none of the data sent to it.
    Stalled,
    /// Room was needed for a new connection.
    Evicted,
    /// Its address has reached its limit of connections.
    Share,
    /// It exceeded its memory limit.
    Memory,
    /// Its handshake waited for the client when others needed the slot.
    Handshake,
    /// It did not answer a ping.
    Ping,
    /// The client changed its settings again and again.
    Settings,
    /// The client pinged too often.
    Pings,
    /// The client sent empty lines instead of a request.
    Blank,
    /// The client's certificate has expired.
    Certificate,
}

impl CloseReason {
    /// Returns the label in metrics.
    pub(in crate::serve) fn label(self) -> &'static str {
        match self {
            CloseReason::NoRequest => "no_request",
            CloseReason::Idle => "idle",
            CloseReason::Stalled => "stalled",
            CloseReason::Evicted => "evicted",
            CloseReason::Share => "address_share",
            CloseReason::Memory => "memory",
            CloseReason::Handshake => "handshake",
            CloseReason::Ping => "ping_timeout",
            CloseReason::Settings => "settings",
            CloseReason::Pings => "too_many_pings",
            CloseReason::Blank => "empty_lines",
            CloseReason::Certificate => "certificate_expired",
        }
    }

    /// Returns true if no request is lost by the close: there is none, or it has time to end.
    pub(in crate::serve) fn is_graceful(self) -> bool {
        matches!(
            self,
            CloseReason::NoRequest | CloseReason::Idle | CloseReason::Certificate
        )
    }
}
