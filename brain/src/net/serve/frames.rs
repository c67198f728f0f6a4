//! Counts the SETTINGS frames of a client: each may cost as much time as the connection has streams.

use std::time::Duration;
use tokio::time::Instant;

/// The connection preface of HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PREFACE_LEN: u32 = 24;

/// The length of a frame header: the payload's length in three bytes, the type, the flags and the stream id.
pub(super) const FRAME: usize = 9;
pub(super) const SETTINGS: u8 = 4;

/// The SETTINGS frames that a client may send at once, and the time after which one more is allowed. Clients that measure the bandwidth
/// send some ten.
const AT_ONCE: u8 = 64;
const ONE_MORE: Duration = Duration::from_millis(500);

/// Follows the frames of one direction of a connection, from the preface on.
#[derive(Debug)]
pub(super) struct Frames {
    /// The bytes of the preface or a payload that are still to come.
    skip: u32,
    header: [u8; FRAME],
    /// The bytes of the header that have come.
    len: u8,
    /// The SETTINGS that are still allowed, as of a moment.
    allowed: u8,
    since: Instant,
}

impl Frames {
    /// Begins at the preface.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            skip: PREFACE_LEN,
            header: [0; FRAME],
            len: 0,
            allowed: AT_ONCE,
            since: now,
        }
    }

    /// Follows the next bytes. Returns true if they contain too many SETTINGS; then it is not to be called again.
    pub(super) fn is_flood(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        while !bytes.is_empty() {
            let skipped = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min(self.skip);
            self.skip -= skipped;
            bytes = &bytes[skipped as usize..];
            let len = usize::from(self.len);
            let taken = (FRAME - len).min(bytes.len());
            self.header[len..len + taken].copy_from_slice(&bytes[..taken]);
            self.len += taken as u8;
            bytes = &bytes[taken..];
            if usize::from(self.len) == FRAME {
                let [a, b, c, kind, ..] = self.header;
                self.skip = u32::from_be_bytes([0, a, b, c]);
                self.len = 0;
                if kind == SETTINGS && !self.allow(now) {
                    return true;
                }
            }
        }
        false
    }

    fn allow(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_millis() / ONE_MORE.as_millis();
        let more = u8::try_from(passed).unwrap_or(u8::MAX);
        if more > 0 {
            self.allowed = self.allowed.saturating_add(more).min(AT_ONCE);
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
        let sent = [PREFACE, &frame.repeat(usize::from(AT_ONCE))].concat();
        for len in [1, 2, 7, 100, sent.len()] {
            let now = Instant::now();
            let mut frames = Frames::new(now);
            assert!(
                sent.chunks(len).all(|piece| !frames.is_flood(piece, now)),
                "pieces of {len}"
            );
            assert!(frames.is_flood(&SETTINGS_FRAME, now), "pieces of {len}");
        }
    }

    #[test]
    fn settings_are_allowed_now_and_then() {
        let now = Instant::now();
        let mut frames = Frames::new(now);
        assert!(!frames.is_flood(PREFACE, now));
        for n in 0..1_000 {
            assert!(!frames.is_flood(&SETTINGS_FRAME, now + ONE_MORE * n), "frame {n}");
        }
    }
}
