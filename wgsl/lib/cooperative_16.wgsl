//! cooperative_16: cooperative matrices of 16 x 16, in f16, and their sums in f32.
enable f16;
enable wgpu_cooperative_matrix;
const SIDE: u32 = 16u;
alias Half = f16;
alias Left = coop_mat16x16<f16, A>;
alias Right = coop_mat16x16<f16, B>;
alias Sums = coop_mat16x16<f32, C>;
