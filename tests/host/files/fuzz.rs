//! Random files, built field by field and then broken in a few fields: nothing may panic, hang, hold much more memory
//! than the input has bytes, or give a tensor that lies outside the file. Unbroken ones must open as they were built.

use wgslm::Error;
use wgslm::file::ModelFile;
use wgslm::quant::{BlockFormat, ggml};

use super::open_bytes;
use wgslm_test::Rng;
use wgslm_test::alloc::counted;

/// Files a test opens; the seeds are fixed.
const INPUTS: usize = 120_000;

/// A file as a list of fields, so that mutations keep the rest in step.
type Fields = Vec<Vec<u8>>;
/// The tensors that a file was built with: name, shape (outermost first), bytes.
type Built = Vec<(String, Vec<u64>, u64)>;

fn u32_field(fields: &mut Fields, v: u32) {
    fields.push(v.to_le_bytes().into());
}

fn u64_field(fields: &mut Fields, v: u64) {
    fields.push(v.to_le_bytes().into());
}

fn str_field(fields: &mut Fields, s: &str) {
    u64_field(fields, s.len() as u64);
    fields.push(s.into());
}

/// The value of a pair: of type `ty`, arrays of anything but arrays.
fn value_fields(fields: &mut Fields, rng: &mut Rng, ty: u32) {
    const SIZES: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    match ty {
        7 => fields.push(vec![rng.below(2) as u8]),
        8 => str_field(fields, ["", "a", "<0x0A>", "schön"][rng.below(4)]),
        9 => {
            let ty = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12][rng.below(12)];
            let count = rng.below(5);
            u32_field(fields, ty);
            u64_field(fields, count as u64);
            for _ in 0..count {
                value_fields(fields, rng, ty);
            }
        }
        _ => fields.push(rng.word().to_le_bytes()[..SIZES[ty as usize]].into()),
    }
}

/// A sound GGUF file.
fn sound_gguf(rng: &mut Rng) -> (Fields, Built) {
    let (pairs, tensors) = (rng.below(4), rng.below(4));
    let mut fields: Fields = vec![b"GGUF".into()];
    u32_field(&mut fields, 2 + rng.below(2) as u32);
    u64_field(&mut fields, tensors as u64);
    u64_field(&mut fields, pairs as u64 + 1);
    let alignment = 8 << rng.below(4);
    str_field(&mut fields, "general.alignment");
    u32_field(&mut fields, 4);
    u32_field(&mut fields, alignment);
    for i in 0..pairs {
        str_field(&mut fields, &format!("key{i}"));
        let ty = rng.below(13) as u32;
        u32_field(&mut fields, ty);
        value_fields(&mut fields, rng, ty);
    }
    let mut built = Vec::new();
    let mut offset = 0;
    for i in 0..tensors {
        let ty = &ggml::TYPES[rng.below(ggml::TYPES.len())];
        let mut dims = vec![u64::from(ty.weights) * (1 + rng.below(2) as u64)];
        dims.extend((0..rng.below(3)).map(|_| 1 + rng.below(3) as u64));
        str_field(&mut fields, &format!("t{i}"));
        u32_field(&mut fields, dims.len() as u32);
        dims.iter().for_each(|&d| u64_field(&mut fields, d));
        u32_field(&mut fields, ty.id);
        u64_field(&mut fields, offset);
        let bytes = dims.iter().product::<u64>() / u64::from(ty.weights) * u64::from(ty.bytes);
        offset += bytes.next_multiple_of(u64::from(alignment));
        dims.reverse();
        built.push((format!("t{i}"), dims, bytes));
    }
    let header: usize = fields.iter().map(Vec::len).sum();
    fields.push(vec![0; header.next_multiple_of(alignment as usize) - header + offset as usize]);
    (fields, built)
}

/// A sound safetensors file: the length is a field, and so is every token of the header.
fn sound_safetensors(rng: &mut Rng) -> (Fields, Built) {
    let mut header: Fields = vec![b"{".into()];
    let mut built = Vec::new();
    let mut offset = 0;
    for i in 0..rng.below(4) {
        let shape: Vec<u64> = (0..rng.below(4)).map(|_| rng.below(4) as u64).collect();
        let (dtype, size) = [("F32", 4), ("BF16", 2), ("F16", 2), ("I64", 8), ("F8_E4M3", 1)][rng.below(5)];
        let bytes = shape.iter().product::<u64>() * size;
        let comma = if i > 0 { "," } else { "" };
        let end = offset + bytes;
        let entry = format!(
            "{comma} \"t{i}\" : {{ \"dtype\" : \"{dtype}\" , \"shape\" : {shape:?} , \"data_offsets\" : [ {offset} , {end} ] }}"
        );
        header.extend(entry.split_inclusive(' ').map(Into::into));
        built.push((format!("t{i}"), shape, bytes));
        offset = end;
    }
    header.push(b"}".into());
    let length: usize = header.iter().map(Vec::len).sum();
    let mut fields = vec![(length as u64).to_le_bytes().into()];
    fields.extend(header);
    fields.push(vec![0; offset as usize]);
    (fields, built)
}

/// Breaks one field, or the list of them.
fn mutate(fields: &mut Fields, rng: &mut Rng) {
    let at = rng.below(fields.len());
    let other = rng.below(fields.len());
    let len = fields[at].len();
    match rng.below(8) {
        0..3 if len == 4 || len == 8 => {
            let old = fields[at].iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b));
            let all = [0, 1, 7, 31, 32, 33, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 60, 1 << 62, 1 << 63, u64::MAX];
            let edge = all[rng.below(all.len())];
            let new =
                [old.wrapping_add(1), old.wrapping_sub(1), edge, edge.wrapping_sub(old), rng.word()][rng.below(5)];
            fields[at] = new.to_le_bytes()[..len].into();
        }
        0..4 if len > 0 => {
            let byte = rng.below(len);
            fields[at][byte] ^= 1 << rng.below(8);
        }
        4 => fields.swap(at, other),
        5 => drop(fields.remove(at)),
        6 => fields.insert(at, fields[other].clone()),
        _ => fields[at].truncate(rng.below(len + 1)),
    }
    if fields.is_empty() {
        fields.push(vec![]);
    }
}

/// What opened must lie in the file and be readable, decoded where it can be.
fn use_all(model: &ModelFile) {
    for tensor in model.tensors() {
        assert!(model.tensor(&tensor.name).is_ok());
        if let Some(all) = model.mapped(tensor) {
            assert_eq!(all.len() as u64, tensor.bytes);
        }
        match (tensor.format(), pollster::block_on(model.read_f32(tensor))) {
            (Ok(_), Ok(numbers)) => assert_eq!(numbers.len() as u64, tensor.rows() * tensor.row_len()),
            (Err(_), Err(Error::Unsupported { .. })) => {}
            (_, other) => panic!("{}: {:?}", tensor.name, other.map(|numbers| numbers.len())),
        }
    }
}

fn fuzz(name: &str, seed: u64, sound: fn(&mut Rng) -> (Fields, Built)) {
    let mut rng = Rng(seed);
    let mut opened = 0;
    for input in 0..INPUTS {
        let (mut fields, built) = sound(&mut rng);
        let mutations = rng.below(4);
        (0..mutations).for_each(|_| mutate(&mut fields, &mut rng));
        let bytes = fields.concat();
        let len = bytes.len();
        let copy = bytes.clone();
        let (result, held, _) = counted(|| open_bytes(name, copy));
        // The file, a copy of it, and what is made of each byte: at most some 50 (an empty string in an array of
        // arrays), and what the parser of JSON and the messages take anyway.
        assert!(held < 64 * len + 4096, "input {input}: {held} bytes held for {len}");
        match result {
            Ok(model) => {
                use_all(&model);
                opened += 1;
                if mutations == 0 {
                    let tensors = model.tensors().iter().map(|t| (t.name.clone(), t.shape.clone(), t.bytes));
                    assert!(tensors.eq(built), "input {input}");
                }
            }
            Err(e) => {
                assert!(mutations > 0, "input {input} is sound: {e}");
                assert!(matches!(e, Error::Malformed { .. } | Error::Unsupported { .. } | Error::Model(_)), "{e:?}");
                assert!(e.to_string().len() < 1000, "{e}");
            }
        }
    }
    println!("{name}: {INPUTS} inputs, {opened} opened");
    assert!(opened > INPUTS / 4 && opened < INPUTS * 3 / 4, "{opened} of {INPUTS} opened: the mutations miss");
}

#[test]
fn broken_gguf_files_never_crash() {
    fuzz("fuzz.gguf", 1, sound_gguf);
}

#[test]
fn broken_safetensors_files_never_crash() {
    fuzz("fuzz.safetensors", 2, sound_safetensors);
}

#[test]
fn every_format_takes_any_bytes() {
    let mut rng = Rng(3);
    for &format in BlockFormat::ALL {
        let info = format.info();
        for blocks in 0..200 {
            let k = info.weights * blocks;
            let bytes: Vec<u8> = (0..info.bytes * blocks).map(|_| rng.word() as u8).collect();
            let x: Vec<f32> = (0..k).map(|_| f32::from_bits(rng.word() as u32)).collect();
            let mut decoded = vec![0.0; k];
            format.decode(&bytes, &mut decoded).unwrap();
            format.dot(&bytes, &x);
            let mut words = vec![0; format.gpu_row_words(k as u64).unwrap() as usize];
            format.repack_row(&bytes, k as u64, &mut words).unwrap();
            let mut encoded = bytes;
            format.encode(&x, &mut encoded).unwrap(); // NaN and infinity among them
        }
    }
}
