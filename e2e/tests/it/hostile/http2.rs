//! HTTP/2 by hand, for clients that break its customs: they open what no window was given for, leave headers and bodies
//! unfinished, and read nothing.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Source address of all attacks; quiet clients have the machine's usual address.
const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_BYTES: usize = 16_384;
/// Bytes that may be sent before the server sets another limit.
const WINDOW_BYTES: i64 = 65_535;
/// For a server that takes no more of a body: then that was all.
const STALL_TIMEOUT: Duration = Duration::from_secs(3);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A plain connection of the attacker's.
pub(super) async fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(ATTACKER.into(), 0))?;
    socket.connect(to).await
}

/// A connection that has sent the preface. It reads everything that arrives, and answers as the protocol requires.
pub(super) struct Http2 {
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    state: Arc<State>,
    /// Ends with this.
    _reader: JoinSet<()>,
    next: u32,
}

#[derive(Default)]
struct State {
    windows: Mutex<Windows>,
    changed: Notify,
}

#[derive(Default)]
struct Windows {
    initial: Option<i64>,
    connection: i64,
    streams: HashMap<u32, i64>,
    /// Streams that the server has ended.
    ended: usize,
    /// The connection is over.
    over: bool,
}

impl Http2 {
    /// Grants the server `window` bytes for each answer.
    pub(super) async fn open(to: SocketAddr, window: u32) -> std::io::Result<Self> {
        let stream = connect(to).await?;
        stream.set_nodelay(true)?;
        let (read, mut write) = stream.into_split();
        let mut settings = vec![0, 4]; // SETTINGS_INITIAL_WINDOW_SIZE
        settings.extend(window.to_be_bytes());
        let mut hello = PREFACE.to_vec();
        push_frame(&mut hello, SETTINGS, 0, 0, &settings);
        write.write_all(&hello).await?;
        let writer = Arc::new(tokio::sync::Mutex::new(write));
        let state = Arc::new(State::default());
        let mut reader = JoinSet::new();
        reader.spawn(follow(read, Arc::clone(&writer), Arc::clone(&state)));
        Ok(Self {
            writer,
            state,
            _reader: reader,
            next: 1,
        })
    }

    /// Opens a stream with its headers; answers its number.
    pub(super) async fn request(&mut self, headers: &[(&str, &str)], ends: bool) -> std::io::Result<u32> {
        let stream = self.next;
        self.next += 2;
        let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
        self.send(HEADERS, flags, stream, &block(headers)).await?;
        Ok(stream)
    }

    /// A gRPC call of `path` without its message.
    pub(super) async fn call(&mut self, path: &str, more: &[(&str, &str)]) -> std::io::Result<u32> {
        let mut headers = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        headers.extend(more);
        self.request(&headers, false).await
    }

    /// A gRPC call with its message, to its end.
    pub(super) async fn unary(&mut self, path: &str, message: &[u8]) -> std::io::Result<u32> {
        let stream = self.call(path, &[]).await?;
        self.body(stream, &framed(message), true).await?;
        Ok(stream)
    }

    /// Headers that never end: their first part, and `bytes` of continuation.
    pub(super) async fn endless_headers(&mut self, bytes: usize) -> std::io::Result<()> {
        let stream = self.next;
        self.next += 2;
        let first = block(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "a"),
        ]);
        self.send(HEADERS, 0, stream, &first).await?;
        let value = "v".repeat(4000);
        let part = block(&[("x-a", &value), ("x-b", &value), ("x-c", &value), ("x-d", &value)]);
        for _ in 0..bytes.div_ceil(part.len()) {
            self.send(CONTINUATION, 0, stream, &part).await?;
        }
        Ok(())
    }

    /// As much of a body as the server takes; answers how many bytes that was.
    pub(super) async fn body(&self, stream: u32, mut bytes: &[u8], ends: bool) -> std::io::Result<usize> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            let Ok(granted) = timeout(STALL_TIMEOUT, self.granted(stream, bytes.len().min(FRAME_BYTES))).await else {
                break;
            };
            let (part, rest) = bytes.split_at(granted?);
            bytes = rest;
            let flags = if ends && bytes.is_empty() { END_STREAM } else { 0 };
            self.send(DATA, flags, stream, part).await?;
        }
        Ok(whole - bytes.len())
    }

    /// Waits until the server has ended this many streams.
    pub(super) async fn ended(&self, count: usize) {
        loop {
            let changed = self.state.changed.notified();
            {
                let windows = self.state.windows.lock().unwrap();
                if windows.over || windows.ended >= count {
                    return;
                }
            }
            changed.await;
        }
    }

    async fn granted(&self, stream: u32, wanted: usize) -> std::io::Result<usize> {
        loop {
            let changed = self.state.changed.notified();
            {
                let mut windows = self.state.windows.lock().unwrap();
                if windows.over {
                    return Err(std::io::ErrorKind::ConnectionReset.into());
                }
                if let Some(initial) = windows.initial {
                    let own = initial + windows.streams.get(&stream).copied().unwrap_or_default();
                    let granted = own
                        .min(WINDOW_BYTES + windows.connection)
                        .min(i64::try_from(wanted).unwrap());
                    if granted > 0 {
                        *windows.streams.entry(stream).or_default() -= granted;
                        windows.connection -= granted;
                        return Ok(usize::try_from(granted).unwrap());
                    }
                }
            }
            changed.await;
        }
    }

    async fn send(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> std::io::Result<()> {
        let mut frame = Vec::with_capacity(9 + payload.len());
        push_frame(&mut frame, kind, flags, stream, payload);
        let mut writer = self.writer.lock().await;
        match timeout(STALL_TIMEOUT, writer.write_all(&frame)).await {
            Ok(written) => written,
            Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
        }
    }
}

/// A message of gRPC.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0], &length.to_be_bytes()[..], message].concat()
}

fn push_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap();
    out.extend(&length.to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// Headers, none of them indexed or compressed.
fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in headers {
        out.push(0);
        push_string(&mut out, name);
        push_string(&mut out, value);
    }
    out
}

/// HPACK's integers with a prefix of seven bits, and the bytes.
fn push_string(out: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        out.push(u8::try_from(length).unwrap());
    } else {
        out.push(127);
        length -= 127;
        while length >= 128 {
            out.push(u8::try_from(length % 128 + 128).unwrap());
            length /= 128;
        }
        out.push(u8::try_from(length).unwrap());
    }
    out.extend(text.as_bytes());
}

/// Reads until the connection ends.
async fn follow(mut read: OwnedReadHalf, writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>, state: Arc<State>) {
    while let Ok((kind, flags, stream, payload)) = frame(&mut read).await {
        let answer = match (kind, flags & ACK) {
            (SETTINGS, 0) => Some((SETTINGS, Vec::new())),
            (PING, 0) => Some((PING, payload.clone())),
            _ => None,
        };
        state.windows.lock().unwrap().see(kind, flags, stream, &payload);
        state.changed.notify_waiters();
        if let Some((kind, payload)) = answer {
            let mut out = Vec::new();
            push_frame(&mut out, kind, ACK, 0, &payload);
            if writer.lock().await.write_all(&out).await.is_err() {
                break;
            }
        }
    }
    state.windows.lock().unwrap().over = true;
    state.changed.notify_waiters();
}

impl Windows {
    fn see(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u32::from_be_bytes);
        match kind {
            SETTINGS if flags & ACK == 0 => {
                let set = payload.chunks_exact(6).find(|setting| setting[..2] == [0, 4]);
                self.initial = Some(set.map_or(WINDOW_BYTES, |setting| i64::from(number(&setting[2..]))));
            }
            WINDOW_UPDATE if stream == 0 => self.connection += i64::from(number(payload)),
            WINDOW_UPDATE => *self.streams.entry(stream).or_default() += i64::from(number(payload)),
            HEADERS | DATA if flags & END_STREAM != 0 => self.ended += 1,
            RESET => self.ended += 1,
            GOAWAY => self.over = true,
            _ => {}
        }
    }
}

async fn frame(read: &mut OwnedReadHalf) -> std::io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    read.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    read.read_exact(&mut payload).await?;
    Ok((head[3], head[4], stream, payload))
}
