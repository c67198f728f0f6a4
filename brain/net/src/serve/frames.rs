//! Counts the SETTINGS frames of a client, because the time for each may grow with the streams of the connection, and its PINGs, by the
//! rules of grpc-go: `--grpc-keepalive-min-time`.

use std::time::Duration;
use tokio::time::Instant;

use super::connections::CloseReason;

/// The connection preface of HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_LEN: u32 = 24;

/// The length of a frame header: the payload's length in three bytes, the type, the flags and the stream id.
pub(super) const FRAME_HEADER_BYTES: usize = 9;
pub(super) const SETTINGS: u8 = 4;
const HEADERS: u8 = 1;
const PING: u8 = 6;

/// The flag of a frame that acknowledges another one.
const ACK_FLAG: u8 = 1;

/// The least time between PINGs of a client without open streams.
const MIN_IDLE_PING_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);

/// The PINGs that may come too early.
const MAX_EARLY_PINGS: u8 = 2;

/// The SETTINGS frames that a client may send at once, and the time after which one more is allowed. Clients that measure the bandwidth
/// send some ten.
const MAX_SETTINGS_BURST: u8 = 64;
const SETTINGS_REFILL_INTERVAL: Duration = Duration::from_millis(500);

/// Follows the frames of one direction of a connection, from the preface on.
#[derive(Debug)]
pub(super) struct FrameFollower {
    /// The bytes of the preface or a payload that are still to come.
    skip: u32,
    header: [u8; FRAME_HEADER_BYTES],
    /// The bytes of the header that have come.
    len: u8,
    /// The SETTINGS that are still allowed, as of a moment.
    allowed: u8,
    since: Instant,
    pings: Option<PingRules>,
}

/// The PINGs of a client, and the least time between them.
#[derive(Debug)]
struct PingRules {
    min_time: Duration,
    last: Option<Instant>,
    early: u8,
    /// HEADERS came since the last PING: their stream may not be open yet, if both came at once.
    headers: bool,
}

/// The state of a connection by which a PING is judged.
pub(super) trait StreamActivity {
    /// Returns true if a stream is open.
    fn has_streams(&self) -> bool;

    /// Returns true if headers or data were sent since this was last asked.
    fn take_answered(&self) -> bool;
}

impl PingRules {
    /// Returns true if the client pings too often, by this PING.
    fn is_exceeded(&mut self, now: Instant, traffic: &impl StreamActivity) -> bool {
        let last = self.last.replace(now);
        // Clients also ping when they are sent something, to measure the bandwidth.
        if traffic.take_answered() {
            self.early = 0;
            return false;
        }
        let headers = std::mem::take(&mut self.headers);
        let least = if headers || traffic.has_streams() {
            self.min_time
        } else {
            MIN_IDLE_PING_INTERVAL
        };
        if last.is_some_and(|last| now.saturating_duration_since(last) < least) {
            self.early += 1;
        }
        self.early > MAX_EARLY_PINGS
    }
}

impl FrameFollower {
    /// Begins at the preface. PINGs are counted if there is a least time between them.
    pub(super) fn new(now: Instant, ping_min_time: Option<Duration>) -> Self {
        Self {
            skip: PREFACE_LEN,
            header: [0; FRAME_HEADER_BYTES],
            len: 0,
            allowed: MAX_SETTINGS_BURST,
            since: now,
            pings: ping_min_time.map(|min_time| PingRules {
                min_time,
                last: None,
                early: 0,
                headers: false,
            }),
        }
    }

    /// Follows the next bytes. Returns the reason to close the connection if there are too many SETTINGS or PINGs; then it is not to be
    /// called again.
    pub(super) fn flood(
        &mut self,
        mut bytes: &[u8],
        now: Instant,
        traffic: &impl StreamActivity,
    ) -> Option<CloseReason> {
        while !bytes.is_empty() {
            let skipped = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(self.skip);
            self.skip -= skipped;
            bytes = &bytes[skipped as usize..];
            let len = usize::from(self.len);
            let taken = (FRAME_HEADER_BYTES - len).min(bytes.len());
            self.header[len..len + taken].copy_from_slice(&bytes[..taken]);
            self.len += taken as u8;
            bytes = &bytes[taken..];
            if usize::from(self.len) == FRAME_HEADER_BYTES {
                let [a, b, c, kind, flags, ..] = self.header;
                self.skip = u32::from_be_bytes([0, a, b, c]);
                self.len = 0;
                if kind == SETTINGS && !self.allow(now) {
                    return Some(CloseReason::Settings);
                }
                if kind == HEADERS
                    && let Some(pings) = &mut self.pings
                {
                    pings.headers = true;
                }
                if kind == PING
                    && flags & ACK_FLAG == 0
                    && let Some(pings) = &mut self.pings
                    && pings.is_exceeded(now, traffic)
                {
                    return Some(CloseReason::Pings);
                }
            }
        }
        None
    }

    fn allow(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_millis() / SETTINGS_REFILL_INTERVAL.as_millis();
        let more = u8::try_from(passed).unwrap_or(u8::MAX);
        if more > 0 {
            self.allowed = self.allowed.saturating_add(more).min(MAX_SETTINGS_BURST);
            self.since = now;
        }
        match self.allowed.checked_sub(1) {
            Some(left) => {
                self.allowed = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection without streams.
    struct Idle;

    impl StreamActivity for Idle {
        fn has_streams(&self) -> bool {
            false
        }

        fn take_answered(&self) -> bool {
            false
        }
    }

    const SETTINGS_FRAME: [u8; 15] = [0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0];

    #[test]
    fn settings_are_counted_in_pieces_of_any_length() {
        // The payload looks like SETTINGS.
        let data = [
            &[0, 0, 18, 0, 0, 0, 0, 0, 1][..],
            &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0].repeat(2),
        ]
        .concat();
        let frame = [&data[..], &SETTINGS_FRAME].concat();
        let sent = [PREFACE, &frame.repeat(usize::from(MAX_SETTINGS_BURST))].concat();
        for len in [1, 2, 7, 100, sent.len()] {
            let now = Instant::now();
            let mut frames = FrameFollower::new(now, None);
            assert!(
                sent.chunks(len).all(|piece| frames.flood(piece, now, &Idle).is_none()),
                "pieces of {len}"
            );
            assert_eq!(
                frames.flood(&SETTINGS_FRAME, now, &Idle),
                Some(CloseReason::Settings),
                "pieces of {len}"
            );
        }
    }

    #[test]
    fn settings_are_allowed_now_and_then() {
        let now = Instant::now();
        let mut frames = FrameFollower::new(now, None);
        assert!(frames.flood(PREFACE, now, &Idle).is_none());
        for n in 0..1_000 {
            assert!(
                frames
                    .flood(&SETTINGS_FRAME, now + SETTINGS_REFILL_INTERVAL * n, &Idle)
                    .is_none(),
                "frame {n}"
            );
        }
    }

    const PING_FRAME: [u8; 17] = [0, 0, 8, PING, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    /// A connection that sends answers at some of the moments.
    struct Busy(bool, bool);

    impl StreamActivity for Busy {
        fn has_streams(&self) -> bool {
            self.0
        }

        fn take_answered(&self) -> bool {
            self.1
        }
    }

    /// Returns the number of PINGs, one in each interval, that are taken until one is too many; 100 if none is.
    fn taken(interval: Duration, has_streams: bool, answers: impl Fn(u32) -> bool) -> u32 {
        let now = Instant::now();
        let mut frames = FrameFollower::new(now, Some(Duration::from_secs(5)));
        assert_eq!(frames.flood(PREFACE, now, &Idle), None);
        let too_many = (0..100).find(|n| {
            let traffic = Busy(has_streams, answers(*n));
            let flood = frames.flood(&PING_FRAME, now + interval * *n, &traffic);
            assert!(flood.is_none_or(|reason| reason == CloseReason::Pings));
            flood.is_some()
        });
        too_many.unwrap_or(100)
    }

    #[test]
    fn pings_are_counted_as_grpc_go_counts_them() {
        let seconds = Duration::from_secs;
        let never = |_| false;
        assert_eq!(taken(seconds(5), true, never), 100);
        // The first one is never early, and two may be.
        assert_eq!(taken(seconds(4), true, never), 3);
        assert_eq!(taken(seconds(5), false, never), 3);
        assert_eq!(taken(seconds(3_600), false, never), 3);
        assert_eq!(taken(seconds(7_200), false, never), 100);
        // Headers or data that were sent since the last one excuse it, and all before.
        assert_eq!(taken(seconds(1), true, |n| n % 3 == 0), 100);
        assert_eq!(taken(seconds(1), true, |n| n == 2), 5);
    }

    #[test]
    fn acknowledged_pings_are_not_counted() {
        let now = Instant::now();
        let mut frames = FrameFollower::new(now, Some(Duration::from_secs(5)));
        let mut pong = PING_FRAME;
        pong[4] = ACK_FLAG;
        assert_eq!(frames.flood(PREFACE, now, &Idle), None);
        assert_eq!(frames.flood(&pong.repeat(100), now, &Idle), None);
        assert_eq!(frames.flood(&PING_FRAME.repeat(3), now, &Idle), None);
        assert_eq!(frames.flood(&PING_FRAME, now, &Idle), Some(CloseReason::Pings));
        let mut uncounted = FrameFollower::new(now, None);
        assert_eq!(uncounted.flood(PREFACE, now, &Idle), None);
        assert_eq!(uncounted.flood(&PING_FRAME.repeat(100), now, &Idle), None);
    }
}
