//! The header blocks of a client, parsed before h2 decodes them. This does two things that h2 cannot do:
//!
//! - An `:authority` that is no authority of a URI is replaced. Go accepts it unchanged: the path of a Unix socket (gRPC's C core), a
//!   resolver's target (clients of etcd 3.5.0), `::1:2379`. h2 converts it to a `http::Uri` and resets the stream. Nothing here depends on
//!   its value.
//!   An empty one that the client adds to its table is not replaced, and h2 refuses it: encoders have the empty one in the static table.
//! - What a long block takes in memory is charged while it arrives, not when it is complete.
//!
//! Invariant: the table of HPACK stays the client's. A value is replaced by one of the same length when decoded, so entries keep their
//! sizes and places; no value gets longer on the wire, so frames keep within their limit.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;
use http::uri::Authority;

use super::frames::{FRAME_HEADER_BYTES, PREFACE};
use super::huffman;
use runtime::budget::{Account, BudgetExceeded, Charge};

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// The longest frame that this side permits. h2 refuses longer ones.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The longest header list, as of etcd's TLS port; h2 keeps nothing of what is beyond it.
pub(super) const MAX_HEADER_LIST_BYTES: u32 = 1 << 20;

/// The most fields that a header map can hold.
const MAX_HEADER_FIELDS: usize = 24_577;

/// The memory of a field beside its bytes, in the map.
pub(super) const FIELD_OVERHEAD_BYTES: usize = 128;

/// The part of a block that is not charged while it arrives.
const UNCHARGED_BLOCK_BYTES: usize = 16 * 1024;

const AUTHORITY_NAME: &[u8] = b":authority";

/// Follows the frames of a client from the preface on.
#[derive(Debug)]
pub(super) struct HeaderBlocks {
    /// The bytes of the preface or of a payload that are still to come, and are passed on as they are.
    pass: usize,
    /// The beginning of a frame that is not complete.
    held: Vec<u8>,
    /// The header block under way.
    block: Option<HeaderBlock>,
}

/// A header block under way.
#[derive(Debug)]
struct HeaderBlock {
    stream: u32,
    /// True while the frame at hand is its last one.
    is_last: bool,
    fields: BlockFields,
    bytes: usize,
    charge: Option<Charge>,
}

/// The charge of a long header block that is complete.
#[derive(Debug)]
pub(super) struct BlockCharge {
    pub(super) stream: u32,
    pub(super) charge: Charge,
}

/// Charges of the header blocks of a connection whose requests are not accepted yet. Requests are accepted in the order of their streams.
#[derive(Debug, Default)]
pub(super) struct UnacceptedBlocks {
    /// The last stream that was accepted.
    accepted: u32,
    charges: VecDeque<BlockCharge>,
}

impl UnacceptedBlocks {
    /// Keeps charges. Those of trailers, which h2 hands on without asking, are released.
    pub(super) fn keep(&mut self, charges: Vec<BlockCharge>) {
        let accepted = self.accepted;
        self.charges
            .extend(charges.into_iter().filter(|charge| charge.stream > accepted));
    }

    /// Returns the charge of a stream that is accepted. Those of earlier streams, which h2 refused, are released.
    pub(super) fn accept(&mut self, stream: u32) -> Option<Charge> {
        self.accepted = self.accepted.max(stream);
        let mut last = None;
        while self.charges.front().is_some_and(|first| first.stream <= stream) {
            last = self.charges.pop_front();
        }
        last.filter(|last| last.stream == stream).map(|last| last.charge)
    }
}

/// The result of [`HeaderBlocks::follow`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FollowOutcome {
    /// This number of bytes is passed on: less than were read if some are held back.
    Here(usize),
    /// These bytes are passed on in place of those that were read.
    Instead(Bytes),
}

impl HeaderBlocks {
    pub(super) fn new() -> Self {
        Self {
            pass: PREFACE.len(),
            held: Vec::new(),
            block: None,
        }
    }

    /// Parses the next bytes and replaces values where needed, in place. Charges of complete blocks are added to `done`. Fails if there is
    /// no memory for a block; then it must not be called again.
    pub(super) fn follow(
        &mut self,
        bytes: &mut [u8],
        account: &Account,
        done: &mut Vec<BlockCharge>,
    ) -> Result<FollowOutcome, BudgetExceeded> {
        if self.held.is_empty() {
            let (len, rest) = self.edit(bytes, account, done)?;
            self.held = bytes[rest..].to_vec();
            return Ok(FollowOutcome::Here(len));
        }
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let (len, rest) = self.edit(&mut held, account, done)?;
        self.held = held[rest..].to_vec();
        held.truncate(len);
        Ok(FollowOutcome::Instead(held.into()))
    }

    /// Returns what is held back, at the end of the stream.
    pub(super) fn take_held(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }

    /// Edits whole frames in place. Returns the length of the result at the beginning of `bytes`, and the start of the part that must wait
    /// for more bytes.
    fn edit(
        &mut self,
        bytes: &mut [u8],
        account: &Account,
        done: &mut Vec<BlockCharge>,
    ) -> Result<(usize, usize), BudgetExceeded> {
        let (mut from, mut to) = (0, 0);
        while from < bytes.len() {
            let left = bytes.len() - from;
            if self.pass > 0 {
                let len = self.pass.min(left);
                self.pass -= len;
                self.continue_block(&bytes[from..from + len], account, done)?;
                move_left(bytes, from..from + len, to);
                (from, to) = (from + len, to + len);
                continue;
            }
            let Some(Ok(head)) = bytes
                .get(from..from + FRAME_HEADER_BYTES)
                .map(<[u8; FRAME_HEADER_BYTES]>::try_from)
            else {
                return Ok((to, from));
            };
            let [a, b, c, kind, flags, s0, s1, s2, s3] = head;
            let len = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
            let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
            let is_last = flags & END_HEADERS != 0;
            if kind != HEADERS || len > MAX_FRAME_BYTES {
                if kind == CONTINUATION {
                    self.block = self.block.take().map(|block| HeaderBlock { is_last, ..block });
                }
                move_left(bytes, from..from + FRAME_HEADER_BYTES, to);
                (from, to, self.pass) = (from + FRAME_HEADER_BYTES, to + FRAME_HEADER_BYTES, len);
                if len == 0 {
                    self.end_block(done);
                }
                continue;
            }
            if left < FRAME_HEADER_BYTES + len {
                return Ok((to, from));
            }
            move_left(bytes, from..from + FRAME_HEADER_BYTES + len, to);
            let frame = &mut bytes[to..to + FRAME_HEADER_BYTES + len];
            self.block = Some(HeaderBlock {
                stream,
                is_last,
                fields: BlockFields::default(),
                bytes: 0,
                charge: None,
            });
            let edited = self.edit_headers(frame, flags, account)?;
            self.end_block(done);
            (from, to) = (from + FRAME_HEADER_BYTES + len, to + edited);
        }
        Ok((to, from))
    }

    /// Replaces the `:authority` in a HEADERS frame if needed. Returns the new length of the frame.
    fn edit_headers(&mut self, frame: &mut [u8], flags: u8, account: &Account) -> Result<usize, BudgetExceeded> {
        let mut begin = FRAME_HEADER_BYTES;
        let mut padding = 0;
        if flags & PADDED != 0 {
            padding = frame.get(begin).map_or(0, |len| usize::from(*len));
            begin += 1;
        }
        if flags & PRIORITY != 0 {
            begin += 5;
        }
        let end = frame.len().saturating_sub(padding);
        let (Some(block), true) = (&mut self.block, begin <= end) else {
            return Ok(frame.len());
        };
        let mut authority = None;
        block
            .fields
            .walk(&frame[begin..end], |found| authority = authority.take().or(Some(found)));
        block.charge(end - begin, account)?;
        let Some(authority) = authority else {
            return Ok(frame.len());
        };
        let old = begin + authority.begin..begin + authority.end;
        let Some(new) = authority.replacement(&frame[begin..end]) else {
            return Ok(frame.len());
        };
        if new.len() > old.len() {
            return Ok(frame.len());
        }
        frame[old.start..old.start + new.len()].copy_from_slice(&new);
        frame.copy_within(old.end.., old.start + new.len());
        let len = frame.len() - (old.len() - new.len());
        let payload = (len - FRAME_HEADER_BYTES) as u32;
        frame[..3].copy_from_slice(&payload.to_be_bytes()[1..]);
        Ok(len)
    }

    /// Follows a part of a payload, which belongs to a block if one is under way.
    fn continue_block(
        &mut self,
        bytes: &[u8],
        account: &Account,
        done: &mut Vec<BlockCharge>,
    ) -> Result<(), BudgetExceeded> {
        if let Some(block) = &mut self.block {
            block.fields.walk(bytes, |_| {});
            block.charge(bytes.len(), account)?;
        }
        if self.pass == 0 {
            self.end_block(done);
        }
        Ok(())
    }

    fn end_block(&mut self, done: &mut Vec<BlockCharge>) {
        let Some(block) = self.block.take_if(|block| block.is_last) else {
            return;
        };
        if let Some(charge) = block.charge {
            let stream = block.stream;
            done.push(BlockCharge { stream, charge });
        }
    }
}

/// Moves bytes to the left, if something before them got shorter.
fn move_left(bytes: &mut [u8], from: Range<usize>, to: usize) {
    if from.start != to {
        bytes.copy_within(from, to);
    }
}

impl HeaderBlock {
    /// Charges what the block takes in memory with `bytes` more: strings get longer by what the Huffman code saved.
    fn charge(&mut self, bytes: usize, account: &Account) -> Result<(), BudgetExceeded> {
        self.bytes += bytes;
        let strings = self.bytes.min(MAX_HEADER_LIST_BYTES as usize) * 8 / 5;
        let needed = strings + self.fields.count.min(MAX_HEADER_FIELDS) * FIELD_OVERHEAD_BYTES;
        if needed <= UNCHARGED_BLOCK_BYTES {
            return Ok(());
        }
        match &mut self.charge {
            None => self.charge = Some(account.charge(needed)?),
            Some(charge) => charge.grow(needed.saturating_sub(charge.bytes()))?,
        }
        Ok(())
    }
}

/// Walks through the fields of a header block, without a table: it counts them, and finds a literal `:authority`.
#[derive(Debug, Default)]
struct BlockFields {
    count: usize,
    at: FieldPosition,
    /// True if the field at hand is an `:authority`.
    is_authority: bool,
    /// True if the field at hand becomes an entry of the table.
    is_indexed: bool,
}

/// The place in a field.
#[derive(Debug, Default, Clone, Copy)]
enum FieldPosition {
    #[default]
    Field,
    /// In the second or a later byte of a number.
    Number {
        of: HpackInteger,
        value: usize,
        shift: u32,
    },
    Length(HpackString),
    Text {
        of: HpackString,
        left: usize,
    },
    /// The rest cannot be parsed: h2 ends the connection.
    Lost,
}

#[derive(Debug, Clone, Copy)]
enum HpackInteger {
    /// The index of a whole field, or the size of the table.
    Whole,
    /// The index of a name.
    Name,
    Length(HpackString),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HpackString {
    Name,
    Value,
}

/// Where an `:authority` is in a block.
#[derive(Debug, Clone, Copy)]
struct AuthorityPosition {
    /// The bytes to replace: those of the value, with its length; all of the field if the value is empty.
    begin: usize,
    end: usize,
    /// Where the value begins.
    value: usize,
    is_huffman: bool,
}

impl BlockFields {
    /// Walks on. `found` is called for each `:authority` that is whole in these bytes, unless its name is in the client's table: no client
    /// does that, as the name has its place in the table that all have.
    fn walk(&mut self, bytes: &[u8], mut found: impl FnMut(AuthorityPosition)) {
        let mut position = 0;
        let mut field = None;
        // The value of the field at hand: where its length begins, and whether it is coded.
        let mut value = None;
        let mut name_is_huffman = false;
        while let Some(byte) = bytes.get(position).copied() {
            let start = position;
            position += 1;
            let number = match self.at {
                FieldPosition::Field => {
                    field = Some(start);
                    value = None;
                    let (number, mask) = self.begin(byte);
                    if byte == 0x81 {
                        // The entry of the table that all have: an empty one.
                        found(AuthorityPosition {
                            begin: start,
                            end: position,
                            value: position,
                            is_huffman: false,
                        });
                    }
                    self.number(number, byte, mask)
                }
                FieldPosition::Length(text) => {
                    match text {
                        HpackString::Name => name_is_huffman = byte & 0x80 != 0,
                        HpackString::Value => value = Some((start, byte & 0x80 != 0)),
                    }
                    self.number(HpackInteger::Length(text), byte, 0x7f)
                }
                FieldPosition::Number { of, value, shift } => self.more(of, byte, (value, shift)),
                FieldPosition::Text { of, left } => {
                    let rest = &bytes[start..];
                    let len = left.min(rest.len());
                    position = start + len;
                    self.at = FieldPosition::Text { of, left: left - len };
                    if len < left {
                        return;
                    }
                    self.end_text(of);
                    continue;
                }
                FieldPosition::Lost => return,
            };
            let Some((of, number)) = number else { continue };
            match of {
                HpackInteger::Whole => self.at = FieldPosition::Field,
                HpackInteger::Name => {
                    self.is_authority = number == 1;
                    self.at = FieldPosition::Length(if number == 0 {
                        HpackString::Name
                    } else {
                        HpackString::Value
                    });
                }
                HpackInteger::Length(HpackString::Name) => {
                    let name = bytes.get(position..position + number);
                    self.is_authority = name.is_some_and(|name| match name_is_huffman {
                        true => huffman::decode(name).is_some_and(|name| name == AUTHORITY_NAME),
                        false => name == AUTHORITY_NAME,
                    });
                    self.text(HpackString::Name, number);
                }
                HpackInteger::Length(HpackString::Value) => {
                    let end = position + number;
                    if let (true, Some(field), Some((begin, is_huffman))) = (self.is_authority, field, value)
                        && end <= bytes.len()
                        && (number > 0 || !self.is_indexed)
                    {
                        found(AuthorityPosition {
                            begin: if number == 0 { field } else { begin },
                            end,
                            value: position,
                            is_huffman,
                        });
                    }
                    self.text(HpackString::Value, number);
                }
            }
        }
    }

    /// Begins a field by its first byte. Returns the number that it begins, and the bits of it.
    fn begin(&mut self, byte: u8) -> (HpackInteger, u8) {
        self.is_indexed = byte & 0xc0 == 0x40;
        self.is_authority = false;
        let (number, mask) = match byte {
            0x80.. => (HpackInteger::Whole, 0x7f),
            0x40.. => (HpackInteger::Name, 0x3f),
            0x20.. => return (HpackInteger::Whole, 0x1f),
            _ => (HpackInteger::Name, 0x0f),
        };
        self.count += 1;
        (number, mask)
    }

    /// Returns a number, if its first byte is all of it.
    fn number(&mut self, of: HpackInteger, byte: u8, mask: u8) -> Option<(HpackInteger, usize)> {
        let value = usize::from(byte & mask);
        if byte & mask < mask {
            return Some((of, value));
        }
        self.at = FieldPosition::Number { of, value, shift: 0 };
        None
    }

    /// Returns a number, if this further byte of it is the last one.
    fn more(&mut self, of: HpackInteger, byte: u8, (value, shift): (usize, u32)) -> Option<(HpackInteger, usize)> {
        let value = value + (usize::from(byte & 0x7f) << shift);
        if byte & 0x80 == 0 {
            return Some((of, value));
        }
        // h2 takes no longer one.
        self.at = match shift {
            0..21 => FieldPosition::Number {
                of,
                value,
                shift: shift + 7,
            },
            _ => FieldPosition::Lost,
        };
        None
    }

    fn text(&mut self, of: HpackString, left: usize) {
        match left {
            0 => self.end_text(of),
            _ => self.at = FieldPosition::Text { of, left },
        }
    }

    fn end_text(&mut self, of: HpackString) {
        self.at = match of {
            HpackString::Name => FieldPosition::Length(HpackString::Value),
            HpackString::Value => FieldPosition::Field,
        };
    }
}

impl AuthorityPosition {
    /// Returns the bytes to write in its place; `None` if it can stay, or is refused by Go, too.
    fn replacement(&self, block: &[u8]) -> Option<Vec<u8>> {
        let coded = block.get(self.value..self.end)?;
        let value = match self.is_huffman {
            true => huffman::decode(coded)?,
            false => coded.to_vec(),
        };
        let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
        if value.iter().any(is_control) || Authority::try_from(value.as_slice()).is_ok() {
            return None;
        }
        if value.is_empty() {
            return Some(Vec::new());
        }
        let (flag, zeros) = match self.is_huffman {
            true => (0x80, huffman::zeros(value.len())),
            false => (0, vec![b'0'; value.len()]),
        };
        let mut new = number(flag, zeros.len());
        new.extend(zeros);
        Some(new)
    }
}

/// Encodes the length of a string, with the flag of its code.
fn number(flag: u8, value: usize) -> Vec<u8> {
    if value < 0x7f {
        return vec![flag | value as u8];
    }
    let (mut bytes, mut rest) = (vec![flag | 0x7f], value - 0x7f);
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

#[cfg(test)]
mod tests;
