use super::*;
use runtime::budget::Budget;
use telemetry::metrics::Metrics;

const SETTINGS: u8 = 4;

fn account() -> Account {
    Budget::new(1 << 30, Metrics::new(false).network.held).account(None)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u32).to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A string as a client writes it, in plain or in the Huffman code: this one made of zeros.
fn plain(text: &str) -> Vec<u8> {
    [number(0, text.len()), text.as_bytes().to_vec()].concat()
}

fn coded(bytes: &[u8]) -> Vec<u8> {
    [number(0x80, bytes.len()), bytes.to_vec()].concat()
}

/// Follows a stream in pieces of a length. Returns what is passed on after the preface.
fn follow(stream: &[u8], len: usize) -> Vec<u8> {
    let (mut blocks, account, mut done) = (HeaderBlocks::new(), account(), Vec::new());
    let mut passed = Vec::new();
    for piece in [PREFACE, stream].concat().chunks(len) {
        let mut piece = piece.to_vec();
        match blocks.follow(&mut piece, &account, &mut done).unwrap() {
            FollowOutcome::Here(len) => passed.extend(&piece[..len]),
            FollowOutcome::Instead(bytes) => passed.extend(bytes),
        }
    }
    passed.extend(blocks.take_held());
    assert!(passed.starts_with(PREFACE) && done.is_empty());
    passed[PREFACE.len()..].to_vec()
}

fn check(from: &[u8], to: &[u8]) {
    for len in [1, 2, 7, 10, 33, 100, 1 << 20] {
        assert_eq!(follow(from, len), to, "pieces of {len}");
    }
}

/// A request whose block has these bytes for its authority, between other fields.
fn request(authority: &[u8], flags: u8, before: &[u8], after: &[u8]) -> Vec<u8> {
    let path = [&[0x04][..], &plain("/etcdserverpb.KV/Range")].concat();
    let te = [&[0x40][..], &plain("te"), &plain("trailers")].concat();
    let block = [before, &[0x83, 0x86], &path, authority, &te, after].concat();
    frame(HEADERS, flags, 1, &block)
}

/// `unix:/x#y` in the Huffman code.
const SOCKET: [u8; 8] = [0xb6, 0xa3, 0x79, 0xb8, 0xc7, 0x9f, 0xfa, 0xf5];

#[test]
fn authorities_of_no_uri_are_replaced_by_others_of_their_length() {
    let indexed = |value: &[u8]| [&[0x41], value].concat();
    let literal = |value: &[u8]| [&[0x40][..], &plain(":authority"), value].concat();
    let never = |value: &[u8]| [&[0x11], value].concat();
    for text in [
        "unix:/var/run/etcd.sock",
        "#initially=[http://127.0.0.1:2379]",
        "/var/run/etcd.sock",
        "%2Fvar%2Frun%2Fetcd.sock",
        "::1:2379",
        "[fe80::1%eth0",
        "a b",
        "m\u{fc}ller",
        &"/".repeat(300),
    ] {
        let zeros = plain(&"0".repeat(text.len()));
        for form in [&indexed as &dyn Fn(&[u8]) -> Vec<u8>, &literal, &never] {
            let (from, to) = (form(&plain(text)), form(&zeros));
            check(
                &request(&from, END_HEADERS, &[], &[]),
                &request(&to, END_HEADERS, &[], &[]),
            );
        }
    }
    for text in [
        "127.0.0.1:2379",
        "my_etcd:2379",
        "localhost",
        "user@host:2379",
        "[::1]:2379",
        "a\u{7}b",
    ] {
        let from = request(&indexed(&plain(text)), END_HEADERS, &[], &[]);
        check(&from, &from);
    }
}

#[test]
fn coded_authorities_keep_their_decoded_length() {
    let text = huffman::decode(&SOCKET).unwrap();
    assert_eq!(text, b"unix:/x#y");
    let (from, to) = (coded(&SOCKET), coded(&huffman::zeros(text.len())));
    assert!(to.len() < from.len());
    let with = |value: &[u8]| request(&[&[0x41], value].concat(), END_HEADERS, &[], &[]);
    check(&with(&from), &with(&to));
    // The frames that follow are moved.
    let data = frame(0, 1, 1, &[0, 0, 0, 0, 1, 7]);
    let ping = frame(6, 0, 0, &[0; 8]);
    let both = |value: &[u8]| [&with(value)[..], &data, &with(value), &ping].concat();
    check(&both(&from), &both(&to));
    // Values that fit are not replaced.
    let host = coded(&huffman::zeros(9));
    check(&with(&host), &with(&host));
}

#[test]
fn empty_authorities_are_left_out() {
    let none = request(&[], END_HEADERS, &[], &[]);
    for empty in [&[0x81][..], &[0x01, 0], &[0x11, 0x80]] {
        check(&request(empty, END_HEADERS, &[], &[]), &none);
    }
    // It must stay, because it is added to the table.
    let entry = request(&[0x41, 0], END_HEADERS, &[], &[]);
    check(&entry, &entry);
}

#[test]
fn padding_priority_and_the_size_of_the_table_are_no_fields() {
    let bad = [&[0x41][..], &plain("unix:x/y")].concat();
    let good = [&[0x41][..], &plain("00000000")].concat();
    let flags = END_HEADERS | PADDED | PRIORITY;
    // The padding looks like a field.
    let padding = [0x41, 1, b'/', 0];
    let before = [4, 0x80, 0, 0, 0, 7, 0x3f, 0xe1, 0x1f];
    check(
        &request(&bad, flags, &before, &padding),
        &request(&good, flags, &before, &padding),
    );
    // Frames of other kinds, the same bytes in a body, a number that is too long, and padding longer than the frame.
    for frame in [
        frame(SETTINGS, 0, 0, &bad),
        frame(0, 0, 1, &request(&bad, END_HEADERS, &[], &[])),
        request(&bad, END_HEADERS, &[0xff; 9], &[]),
        frame(HEADERS, flags, 1, &[200, 0x41]),
        frame(HEADERS, flags, 1, &[]),
    ] {
        check(&frame, &frame);
    }
}

#[test]
fn long_blocks_are_charged_while_they_arrive() {
    let account = account();
    let (mut blocks, mut done) = (HeaderBlocks::new(), Vec::new());
    blocks.follow(&mut PREFACE.to_vec(), &account, &mut done).unwrap();
    let field = [&[0][..], &plain("x"), &plain(&"p".repeat(9_000))].concat();
    let block = field.repeat(11);
    let (head, rest) = block.split_at(16_000);
    blocks
        .follow(&mut frame(HEADERS, 0, 5, head), &account, &mut done)
        .unwrap();
    let mut held = account.used();
    assert!((16_000..40_000).contains(&held), "{held}");
    let mut parts = rest.chunks(16_000).peekable();
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() { END_HEADERS } else { 0 };
        assert!(done.is_empty());
        blocks
            .follow(&mut frame(CONTINUATION, flags, 5, part), &account, &mut done)
            .unwrap();
        assert!(account.used() >= held + part.len());
        held = account.used();
    }
    assert_eq!((done.len(), done[0].stream, done[0].charge.bytes()), (1, 5, held));
    done.clear();
    assert_eq!(account.used(), 0);
    // Many fields of one byte each.
    blocks
        .follow(&mut frame(HEADERS, END_HEADERS, 7, &[0x82; 2_000]), &account, &mut done)
        .unwrap();
    assert!(account.used() > 2_000 * FIELD_OVERHEAD_BYTES);
    // A small one costs nothing here.
    done.clear();
    blocks
        .follow(&mut request(&[], END_HEADERS, &[], &[]), &account, &mut done)
        .unwrap();
    assert_eq!((account.used(), done.len()), (0, 0));
}

#[test]
fn block_for_which_there_is_no_memory_is_an_error() {
    let account = Budget::new(64 << 10, Metrics::new(false).network.held).account(None);
    let (mut blocks, mut done) = (HeaderBlocks::new(), Vec::new());
    blocks.follow(&mut PREFACE.to_vec(), &account, &mut done).unwrap();
    let refused = blocks.follow(&mut frame(HEADERS, END_HEADERS, 1, &[0x82; 2_000]), &account, &mut done);
    assert!(refused.is_err());
}
