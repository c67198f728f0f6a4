//! Long values and records, compressed with Zstandard. A frame says its content's size, and has no checksum: the files that hold it do.

use std::cell::RefCell;
use std::num::NonZeroU32;

use bytes::Bytes;
use zstd::zstd_safe::{CCtx, DCtx, SafeResult, get_dict_id_from_frame, get_frame_content_size};

pub use dictionary::{Dictionary, MIN_BYTES_WITH_DICTIONARY};

mod dictionary;

/// Shorter content is not worth it.
const MIN_BYTES: usize = 1024;

/// The part of its size that compression must save: one in this many bytes.
const MIN_SAVED: usize = 8;

/// A block of a frame holds at most 128 KiB, and takes at least four bytes.
const MAX_BYTES_PER_FRAME_BYTE: u64 = 32 << 10;

/// The fastest level that saves much: twice as much time at level 3 saves a fiftieth more of a pod.
const LEVEL: i32 = 1;

thread_local! {
    static COMPRESSOR: RefCell<Option<CCtx<'static>>> = RefCell::new(CCtx::try_create());
    static DECOMPRESSOR: RefCell<Option<DCtx<'static>>> = RefCell::new(DCtx::try_create());
}

/// Returns a frame with this content; `None` if it is short or does not compress well.
#[must_use]
pub fn compress(content: &[u8]) -> Option<Bytes> {
    compress_with(content, MIN_BYTES, |context, frame| {
        context.compress(frame, content, LEVEL)
    })
}

/// The same for content of `min_bytes` and more, with what writes the frame.
fn compress_with(
    content: &[u8],
    min_bytes: usize,
    write: impl FnOnce(&mut CCtx<'static>, &mut [u8]) -> SafeResult,
) -> Option<Bytes> {
    if content.len() < min_bytes || u32::try_from(content.len()).is_err() {
        return None;
    }
    let mut frame = vec![0; content.len() - content.len() / MIN_SAVED];
    // A frame that does not fit saves too little.
    let written = COMPRESSOR.with_borrow_mut(|context| write(context.as_mut()?, &mut frame).ok())?;
    frame.truncate(written);
    Some(frame.into())
}

/// Returns the size of a frame's content, in bytes; `None` if this is no frame that [`compress`] made.
#[must_use]
pub fn content_size(frame: &[u8]) -> Option<u32> {
    let size = get_frame_content_size(frame).ok()??;
    // Memory is not taken for what a damaged frame says.
    let is_possible = size / MAX_BYTES_PER_FRAME_BYTE <= frame.len() as u64;
    u32::try_from(size).ok().filter(|_| is_possible)
}

/// Returns the id of the dictionary that a frame needs; `None` if it needs none.
#[must_use]
pub fn dictionary_id(frame: &[u8]) -> Option<NonZeroU32> {
    get_dict_id_from_frame(frame)
}

/// Returns a frame's content; `None` if this is no frame that [`compress`] made.
#[must_use]
pub fn decompress(frame: &[u8]) -> Option<Bytes> {
    decompress_with(frame, |context, content| context.decompress(content, frame))
}

fn decompress_with(frame: &[u8], read: impl FnOnce(&mut DCtx<'static>, &mut [u8]) -> SafeResult) -> Option<Bytes> {
    let mut content = vec![0; usize::try_from(content_size(frame)?).ok()?];
    let len = DECOMPRESSOR.with_borrow_mut(|context| read(context.as_mut()?, &mut content).ok())?;
    (content.len() == len).then(|| Bytes::from(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_content_is_compressed_if_it_becomes_shorter() {
        let text = b"name: etcd, namespace: kube-system; ".repeat(500);
        let random: Vec<u8> = (0..20_000).map(|_| rand::random()).collect();
        for len in [0, 1, MIN_BYTES - 1] {
            assert_eq!(compress(&text[..len]), None);
        }
        for len in [MIN_BYTES, MIN_BYTES + 1, text.len()] {
            let frame = compress(&text[..len]).unwrap();
            assert!(frame.len() < len / 4, "{} bytes of {len}", frame.len());
            assert_eq!(content_size(&frame), u32::try_from(len).ok());
            assert_eq!(decompress(&frame).unwrap(), text[..len]);
            assert_eq!(compress(&random[..len]), None);
        }
    }

    #[test]
    fn other_bytes_are_no_frame() {
        let content = b"four".repeat(1_000);
        let frame = compress(&content).unwrap();
        for at in 0..frame.len() {
            assert_eq!(decompress(&frame[..at]), None, "cut at {at}");
            let mut damaged = frame.to_vec();
            damaged[at] ^= 0xff;
            // Some bytes of a frame may have any value.
            let size = content_size(&damaged).map_or(0, |size| size as usize);
            assert!(decompress(&damaged).is_none_or(|content| content.len() == size));
        }
        let huge = [&[0x28, 0xb5, 0x2f, 0xfd, 0xa0][..], &u32::MAX.to_le_bytes(), &[1, 0, 0]].concat();
        assert_eq!(get_frame_content_size(&huge).unwrap(), Some(u64::from(u32::MAX)));
        assert_eq!(content_size(&huge), None);
    }
}
