//! One kernel and no engine: heads in an application's buffer are rotated in place, in the application's compute pass.
use wgslm::exec::single::{Rotation, Single, StepBuffer, StepLimits};
use wgslm::gpu::{Buffer, Device, Pipelines, wgpu};
use wgslm::ops::{Op, Pairing, Rope, RopeSpec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    wgslm::block_on(async {
        // The application's device and buffer: 3 rows of 2 heads of 8 elements.
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapter = instance.request_adapter(&Default::default()).await?;
        let (device, queue) = adapter.request_device(&Default::default()).await?;
        let (rows, heads, head_dim) = (3, 2, 8);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let desc = wgpu::BufferDescriptor { label: None, size: 3 * 2 * 8 * 4, usage, mapped_at_creation: false };
        let heads_buffer = device.create_buffer(&desc);
        queue.write_buffer(&heads_buffer, 0, bytemuck::cast_slice(&[1f32; 3 * 2 * 8]));

        // What is to be done: checked and bound once.
        let shared = Device::from_host(&adapter.get_info(), device.clone(), queue.clone());
        let step = StepBuffer::new(&shared, StepLimits { rows, ..StepLimits::default() })?;
        let mut pipelines = Pipelines::new(&shared);
        let mut single = Single::new(&mut pipelines, &step);
        let x = single.value(&Buffer::from_host(heads_buffer.clone())?, heads * head_dim)?;
        let table = single.rotation(Rotation::Power { theta: 10_000.0, dims: head_dim, scale: 1.0, factor: 1.0 })?;
        let spec = RopeSpec { table, pairing: Pairing::Neox, dims: head_dim };
        single.add(Op::Rope(Rope { x, heads, head_dim, spec, out: x }))?;
        let plan = single.finish()?;

        // Whenever there are rows: where they stand, and a pass of the application's.
        let counts = step.write_run(&shared, rows, 100, &[])?;
        let mut encoder = device.create_command_encoder(&Default::default());
        plan.encode(&mut encoder.begin_compute_pass(&Default::default()), counts);
        queue.submit([encoder.finish()]);

        let rotated: Vec<f32> = Buffer::from_host(heads_buffer)?.read(&shared, 0..48).await?;
        for (row, pos) in rotated.chunks(16).zip(100..) {
            println!("position {pos}: {:?}", &row[..8]);
        }
        Ok(())
    })
}
